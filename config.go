package berth

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/spell"
)

// ConfigPath is the default path of the configuration.
const ConfigPath = "/etc/berth/config.toml"

// Config is the admin's configuration. The zero value is the built-in default;
// packaging/config.toml explains every key.
type Config struct {
	// State is the directory of the files that a reboot may remove: snapshot and ledger.
	State string `toml:"state"`
	// Data is the directory of the files that outlive a reboot: driver files, images, the event log.
	Data string `toml:"data"`
	// Runtime is the real OCI runtime, a path or a name in PATH. "" means crun,
	// or runc where crun is missing or refuses the host.
	Runtime string `toml:"runtime"`
	// Berth is the path of the berth command, for programs that run it.
	Berth string `toml:"berth"`
	// Hook is the path of berth-hook, for specs that name it.
	Hook   string     `toml:"hook"`
	Host   HostConfig `toml:"host"`
	Policy Policy     `toml:"policy"`
	// Guard is the device guard of the whole host.
	Guard     GuardConfig     `toml:"guard"`
	Run       RunConfig       `toml:"run"`
	Apptainer ApptainerConfig `toml:"apptainer"`

	// Log gets warnings about the ledger that make no call fail, such as an event log that
	// can't be written. nil discards them. It is no key of the file.
	Log *slog.Logger `toml:"-"`

	// Confined is set in a process that a systemd unit confines, as it does the broker: with less rights
	// than it takes to renew the inventory, so that a stale snapshot is an error, and in a mount
	// namespace of its own. It is no key of the file.
	Confined bool `toml:"-"`
	// UserData and UserState take the place of Data and State for the tasks and images of a user without root. They are
	// no keys of the file.
	UserData  string `toml:"-"`
	UserState string `toml:"-"`
	// SudoUID is the environment variable SUDO_UID of a command: see [ledger.Owner].
	SudoUID string `toml:"-"`

	path string // of the file that was read, "" for ConfigPath
}

// RunConfig has the settings of berth run.
type RunConfig struct {
	// Engine is native, berth itself, or containerd. "" means native.
	Engine string `toml:"engine"`
	// ContainerdAddress is containerd's socket. "" means containerd's default.
	ContainerdAddress string `toml:"containerd_address"`
	// HostsDir are directories that configure registries, by hosts.toml or certificates.
	// The first directory with a subdirectory for a registry counts. An empty list means the
	// directories of containerd, docker and podman.
	HostsDir []string `toml:"hosts_dir"`
	// KeepEnded is how long the record, log and files of a task are kept after its end: a
	// duration, or "forever". "" means 720h.
	KeepEnded string `toml:"keep_ended"`
	// KeepCount is how many ended tasks are kept at most. 0 means 5000, a negative number
	// means no limit.
	KeepCount int `toml:"keep_count"`
}

// ApptainerConfig has the settings of berth apptainer.
type ApptainerConfig struct {
	// SignedBy are fingerprints of OpenPGP keys. Unless the list is empty, SIF files are run only if one of these keys has signed
	// them.
	SignedBy []string `toml:"signed_by"`
	// Keyring is the file with the admin's OpenPGP keys. "" means /etc/apptainer/global-pgp-public.
	Keyring string `toml:"keyring"`
	// Library is the address of the server of library:// images. "" means none.
	Library string `toml:"library"`
}

// GlobalKeyring returns the path of the file with the admin's OpenPGP keys.
func (a ApptainerConfig) GlobalKeyring() string {
	return cmp.Or(a.Keyring, "/etc/apptainer/global-pgp-public")
}

// Retention returns how long, and how many, ended tasks are kept; 0 means no limit.
func (r RunConfig) Retention() (age time.Duration, count int, err error) {
	age, count = 720*time.Hour, max(r.KeepCount, 0)
	if r.KeepCount == 0 {
		count = 5000
	}
	switch r.KeepEnded {
	case "":
	case "forever":
		age = 0
	default:
		if age, err = time.ParseDuration(r.KeepEnded); err != nil || age <= 0 {
			return 0, 0, fmt.Errorf("run.keep_ended: %q is neither a duration, such as 720h, nor \"forever\"", r.KeepEnded)
		}
	}
	return age, count, nil
}

// HostConfig has the paths of the node's kernel file systems, its driver and its CDI specs.
type HostConfig struct {
	DriverRoot string `toml:"driver_root"`
	Dev        string `toml:"dev"`
	Proc       string `toml:"proc"`
	Sys        string `toml:"sys"`
	Cgroup     string `toml:"cgroup"`
	// CDI are the directories of CDI specs in rising order of precedence. An empty list
	// means /etc/cdi and /var/run/cdi.
	CDI []string `toml:"cdi"`
	// NVML is the library to load, a path or a soname. "" means
	// libnvidia-ml.so.1, first below the driver root.
	NVML string `toml:"nvml"`
}

// LoadConfig reads the configuration at path and fills in the defaults. A missing file at
// ConfigPath is not an error; an unknown key is one. With an error the result has at most
// Runtime, for calls that end containers which that runtime has created.
func LoadConfig(path string) (Config, error) {
	c, err := readConfig(path)
	if err != nil {
		return Config{Runtime: c.Runtime}, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return c, nil
}

// Path returns the path of the file that was read, "" for [ConfigPath].
func (c Config) Path() string { return c.path }

// maxConfig bounds the size of the configuration in bytes.
const maxConfig = 1 << 20

func readConfig(path string) (c Config, err error) {
	data, err := readConfigFile(path, path == ConfigPath)
	if err == nil {
		err = c.decode(data)
	}
	if err != nil {
		return c, err
	}
	if path != ConfigPath {
		c.path = path
	}
	c.State = cmp.Or(c.State, "/run/berth")
	c.Data = cmp.Or(c.Data, "/var/lib/berth")
	if c.Host.CDI == nil {
		c.Host.CDI = []string{"/etc/cdi", "/var/run/cdi"}
	}
	return c, c.check()
}

// readConfigFile returns the content of a regular file. If it is optional, a missing file is empty; a dangling
// symbolic link is an error in any case. It never waits, such as for the writer of a FIFO. Its errors don't
// name the path.
func readConfigFile(path string, optional bool) (data []byte, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		target, noLink := os.Readlink(path)
		if noLink == nil {
			return nil, fmt.Errorf("it is a symbolic link to %s: %w", target, err)
		}
		if optional {
			return nil, nil
		}
		return nil, err
	case errors.Is(err, unix.ENXIO): // a socket, or a device without a driver
		return nil, errNoRegularFile
	case err != nil:
		return nil, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNoRegularFile
	}
	return smallfile.ReadFD(fd, st.Size, maxConfig)
}

var errNoRegularFile = errors.New("it is no regular file")

// decode reads TOML. An unknown key is an error, after everything else was decoded.
//
// It takes 0.1 ms for the packaged file in a process that has just started; a wrapper's call
// takes 2 ms.
func (c *Config) decode(data []byte) error {
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(c)
	var unknown *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &unknown):
		line, _ := unknown.Errors[0].Position()
		key := strings.Join(unknown.Errors[0].Key(), ".")
		return fmt.Errorf("line %d: unknown key %q%s", line, key, suggestKey(key))
	case errors.As(err, &bad):
		line, column := bad.Position()
		text := strings.TrimPrefix(bad.Error(), "toml: ")
		if _, goType, ok := strings.Cut(text, " into struct field"); ok {
			_, goType, _ = strings.Cut(goType, " of type ")
			text = "it is " + cmp.Or(map[string]string{"bool": "true or false", "string": "a text, in quotes", "int": "a number", "[]string": "a list of texts"}[goType], "of another type")
		}
		if key := strings.Join(bad.Key(), "."); key != "" {
			text = key + ": " + text
		}
		return fmt.Errorf("line %d, column %d: %s", line, column, text)
	}
	return err
}

// suggestKey returns the end of an error's text that names the likely key for an unknown
// one: the nearest key, or the key of the same name in another section. "" means that no
// key is near.
func suggestKey(unknown string) string {
	known := listKeys("", reflect.TypeFor[Config]())
	if near := spell.Suggestion(unknown, known...); near != "" {
		return near
	}
	last := func(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }
	var names []string
	for _, key := range known {
		names = append(names, last(key))
	}
	if i := slices.Index(names, spell.Nearest(last(unknown), names)); i >= 0 {
		return " (did you mean " + known[i] + "?)"
	}
	return ""
}

// listKeys returns the keys of the configuration with their sections, and the sections.
func listKeys(section string, t reflect.Type) (keys []string) {
	for _, field := range reflect.VisibleFields(t) {
		name := field.Tag.Get("toml")
		if name == "" || name == "-" {
			continue
		}
		keys = append(keys, section+name)
		if field.Type.Kind() == reflect.Struct {
			keys = append(keys, listKeys(section+name+".", field.Type)...)
		}
	}
	return keys
}

// check refuses values that cannot be used.
func (c Config) check() error {
	dirs := map[string][]string{"state": {c.State}, "data": {c.Data}, "hook": {cmp.Or(c.Hook, "/")}, "host.cdi": c.Host.CDI, "run.hosts_dir": c.Run.HostsDir, "apptainer.keyring": {c.Apptainer.GlobalKeyring()}}
	for _, key := range []string{"state", "data", "hook", "host.cdi", "run.hosts_dir", "apptainer.keyring"} {
		for _, dir := range dirs[key] {
			if !filepath.IsAbs(dir) {
				return fmt.Errorf("%s: %q is not an absolute path", key, dir)
			}
		}
	}
	if _, _, err := c.Run.Retention(); err != nil {
		return err
	}
	if err := c.Guard.check(); err != nil {
		return err
	}
	return c.Policy.check()
}

// GPUHost returns the node's paths in the form that package gpu takes.
func (c Config) GPUHost() gpu.Host {
	return gpu.Host{DriverRoot: c.Host.DriverRoot, Dev: c.Host.Dev, Proc: c.Host.Proc, Sys: c.Host.Sys}
}

// SnapshotPath returns the path of the inventory snapshot.
func (c Config) SnapshotPath() string { return filepath.Join(c.State, "inventory.json") }

// SharedFiles returns the directory of the driver files that all containers share.
func (c Config) SharedFiles() shared.Dir { return shared.InData(c.Data) }

// TaskData returns the directory of the tasks and images of this process's user.
func (c Config) TaskData() string { return cmp.Or(c.UserData, c.Data) }

// TaskState returns the directory of what runtimes keep of the tasks in TaskData, and of what berth makes for them.
func (c Config) TaskState() string { return cmp.Or(c.UserState, c.State) }

// runtimeRootsPath returns the directory that notes the state directories of runtimes, see runtimestate.Note. It
// outlives the ledger.
func (c Config) runtimeRootsPath() string { return filepath.Join(c.Data, "runtime-roots") }

// CDIPath returns the path of the list of other vendors' CDI devices.
func (c Config) CDIPath() string { return filepath.Join(c.State, "cdi.json") }

// Command returns the path of the berth command: the configured path, else the file
// beside the running program, else "berth" for a search in PATH.
func (c Config) Command() string {
	if c.Berth != "" {
		return c.Berth
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "berth")
		if fi, err := os.Stat(beside); err == nil && fi.Mode().IsRegular() {
			return beside
		}
	}
	return "berth"
}

// HookCommand returns the path of berth-hook: the configured path, else the file beside
// the berth command, else /usr/bin/berth-hook.
func (c Config) HookCommand() string {
	if c.Hook != "" {
		return c.Hook
	}
	if berth := c.Command(); filepath.IsAbs(berth) {
		return filepath.Join(filepath.Dir(berth), "berth-hook")
	}
	return "/usr/bin/berth-hook"
}
