package backend

import (
	"cmp"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// registryAccess returns the files of docker, podman and nerdctl with credentials and with the
// configuration of registries, for the user that this process acts for. version is berth's.
func registryAccess(conf berth.Config, version string) registry.Access {
	a := registry.Access{Agent: "berth/" + version}
	p := userFiles{environment: os.Getenv}
	if os.Geteuid() == 0 && !userns.IsInside() {
		p.invoker, p.ownerOf = findInvoker(os.Getenv), findForeignOwner
	}
	a.Credentials, a.LoginFile = p.credentialFiles()
	if a.HostDirs = conf.Run.HostsDir; len(a.HostDirs) == 0 {
		if settings := p.ownSettings(); settings != "" {
			a.HostDirs = []string{filepath.Join(settings, "containerd", "certs.d"), filepath.Join(settings, "docker", "certs.d")}
		}
		a.HostDirs = append(a.HostDirs, "/etc/containerd/certs.d", "/etc/docker/certs.d", "/etc/containers/certs.d")
	}
	return a
}

// userFiles finds the configuration files of docker and podman.
type userFiles struct {
	environment func(string) string
	// invoker is the user for whom root acts, nil for none.
	invoker *registry.User
	// ownerOf returns the first user other than root who owns a part of a path, and so can redirect
	// it; nil if root owns all parts. ownerOf itself is nil unless this process is root's: the kernel
	// checks the access of all other users.
	ownerOf func(path string) *registry.User
}

// credentialFiles returns the files to search, in this order, and the file in which berth login stores a
// login. Files of the invoker come before root's own.
func (p userFiles) credentialFiles() (files []registry.CredentialFile, login registry.CredentialFile) {
	add := func(user *registry.User, path ...string) {
		if path[0] == "" { // unknown
			return
		}
		f := registry.CredentialFile{Path: filepath.Join(path...), User: user}
		if user == nil && p.ownerOf != nil {
			f.User = p.ownerOf(f.Path)
		}
		files = append(files, f)
	}
	add(nil, p.environment("REGISTRY_AUTH_FILE"))
	add(nil, p.environment("DOCKER_CONFIG"), "config.json")
	named := p.environment("DOCKER_CONFIG") != ""
	if named {
		login = files[len(files)-1]
	}
	if u := p.invoker; u != nil {
		if !named && u.Home != "" {
			add(u, u.Home, ".docker", "config.json")
			login = registry.CredentialFile{Path: filepath.Join(u.Home, ".docker", "config.json"), User: u}
		}
		add(u, "/run/user", strconv.FormatUint(uint64(u.UID), 10), "containers", "auth.json")
		add(u, u.Home, ".config", "containers", "auth.json")
	}
	if !named {
		add(nil, p.ownHome(), ".docker", "config.json")
		if p.invoker == nil && p.ownHome() != "" {
			login = files[len(files)-1]
		}
	}
	if runtime := p.environment("XDG_RUNTIME_DIR"); runtime != "" {
		add(nil, runtime, "containers", "auth.json")
	} else {
		add(nil, "/run/containers", strconv.Itoa(userns.OuterUID()), "auth.json")
	}
	add(nil, p.ownSettings(), "containers", "auth.json")
	return files, login
}

// ownHome returns the home directory of this process's user. For root it ignores a HOME that another
// user can change, which sudo may leave.
func (p userFiles) ownHome() string {
	home := p.environment("HOME")
	if home == "" || p.ownerOf == nil || p.ownerOf(home) == nil {
		return home
	}
	if root, err := user.LookupId("0"); err == nil {
		return root.HomeDir
	}
	return "/root"
}

// ownSettings returns the directory of this user's configuration files.
func (p userFiles) ownSettings() string {
	settings := p.environment("XDG_CONFIG_HOME")
	if settings != "" && (p.ownerOf == nil || p.ownerOf(settings) == nil) {
		return settings
	}
	if home := p.ownHome(); home != "" {
		return filepath.Join(home, ".config")
	}
	return ""
}

// findInvoker returns the user for whom root acts: the user of SUDO_UID, else the owner of HOME. It
// returns nil if that is root.
func findInvoker(environment func(string) string) *registry.User {
	if uid, err := strconv.ParseUint(environment("SUDO_UID"), 10, 32); err == nil && uid != 0 {
		gid, err := strconv.ParseUint(environment("SUDO_GID"), 10, 32)
		u := findUser(uint32(uid))
		if err == nil {
			u.GID = uint32(gid)
		}
		u.Home = cmp.Or(environment("SUDO_HOME"), u.Home)
		return u
	}
	home := environment("HOME")
	u := findForeignOwner(home)
	if u != nil {
		u.Home = home
	}
	return u
}

// findUser returns the user with a uid. Without an entry in /etc/passwd, Home is "" and GID is nogroup.
func findUser(uid uint32) *registry.User {
	const nogroup = 65534
	u := &registry.User{UID: uid, GID: nogroup}
	if entry, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		u.Home = entry.HomeDir
		if gid, err := strconv.ParseUint(entry.Gid, 10, 32); err == nil {
			u.GID = uint32(gid)
		}
	}
	return u
}

// findForeignOwner returns the first user other than root who owns a part of a path: that user can make
// the rest of the path lead anywhere. It returns nil if root owns all parts that exist.
func findForeignOwner(path string) *registry.User {
	path, err := filepath.Abs(path)
	if err != nil || path == "/" {
		return nil
	}
	at := ""
	for _, part := range strings.Split(path, "/")[1:] {
		at += "/" + part
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return nil // the rest can't be opened either
		}
		if st.Uid != 0 {
			return findUser(st.Uid)
		}
	}
	return nil
}
