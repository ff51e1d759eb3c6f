package pull

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// logIn runs berth login with a password on standard input.
func (h home) logIn(t *testing.T, password string, args ...string) rig.Said {
	t.Helper()
	cmd := h.command(append([]string{"login"}, args...)...)
	cmd.Stdin = strings.NewReader(password)
	return node.Run(t, cmd)
}

// TestLogin: berth, podman and skopeo pull with what berth login keeps, until berth logout.
func TestLogin(t *testing.T) {
	push(t, "oci:"+busybox+":latest", "docker://"+closed+"/box:1", "--dest-creds", "puller:secret")
	name := closed + "/box:1"
	h := newHome(t)
	podman := func(wants bool, args ...string) {
		t.Helper()
		args = append([]string{"HOME=" + h.dir, "XDG_RUNTIME_DIR=" + h.dir, "podman", "--root", h.dir + "/root", "--runroot", h.dir + "/run", "--storage-driver", "vfs"}, args...)
		if out, err := exec.Command("env", args...).CombinedOutput(); (err == nil) != wants {
			t.Errorf("podman %v: %v: %s", args, err, out)
		}
	}
	podman(false, "pull", "--quiet", "--tls-verify=false", name)
	h.fails(t, 1, "standard input is no terminal to prompt on: give --username and --password-stdin", "login", closed)
	said := h.logIn(t, "secret\n", "-u", "puller", "--password-stdin", closed)
	file := h.dir + "/.docker/config.json"
	if said.Code != 0 || said.Out != "Login Succeeded\n" || !strings.Contains(said.Err, "kept unencrypted in "+file) {
		t.Fatalf("%+v", said)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	h.must(t, "pull", "--quiet", name)
	podman(true, "pull", "--quiet", "--tls-verify=false", name)
	if out, err := exec.Command("env", "HOME="+h.dir, "XDG_RUNTIME_DIR="+h.dir, "skopeo", "inspect", "--tls-verify=false", "docker://"+name).CombinedOutput(); err != nil {
		t.Errorf("skopeo: %v: %s", err, out)
	}
	if said := h.must(t, "login", "http://"+closed+"/v2/"); said.Out != "Login Succeeded\n" || !strings.Contains(said.Err, "used the login stored in "+file) {
		t.Errorf("%+v", said)
	}
	if out := h.must(t, "logout", closed).Out; out != "Removed the login of "+closed+"\n" {
		t.Errorf("says %q", out)
	}
	if out := h.must(t, "logout", closed).Out; out != "Not logged in to "+closed+"\n" {
		t.Errorf("says %q", out)
	}
	h.fails(t, 1, "access denied to "+closed+"/box: registry "+closed+" asks for other credentials; check the name, or log in with berth login", "pull", name)
	podman(false, "pull", "--quiet", "--tls-verify=false", name)

	// What podman keeps, berth uses, and says so.
	podman(true, "login", "--tls-verify=false", "-u", "puller", "-p", "secret", closed)
	h.must(t, "pull", "--quiet", name)
	if said := h.must(t, "logout", closed); said.Out != "Not logged in to "+closed+"\n" || !strings.Contains(said.Err, "containers/auth.json also has a login of "+closed) {
		t.Errorf("%+v", said)
	}
}

// TestLoginRefused: what is refused is not kept, and keeps what was there.
func TestLoginRefused(t *testing.T) {
	h := newHome(t)
	if said := h.logIn(t, "secret", "-u", "puller", "--password-stdin", closed); said.Code != 0 {
		t.Fatalf("%+v", said)
	}
	file := h.dir + "/.docker/config.json"
	before, err := os.ReadFile(file)
	rig.Must(t, err)
	for _, tt := range []struct {
		name, password string
		args           []string
		code           int
		says           string
	}{
		{"wrong password", "wrong", []string{"-u", "puller", "--password-stdin", closed}, 1, "berth: log in as puller: access denied by registry " + closed + ": authentication required; check user name and password\n"},
		{"wrong user", "secret", []string{"-u", "stranger", "--password-stdin", closed}, 1, "; check user name and password\n"},
		{"no such host", "secret", []string{"-u", "puller", "--password-stdin", "registry.invalid"}, 1, "berth: log in: registry registry.invalid: no such host; check the name, DNS and, behind a proxy, HTTPS_PROXY\n"},
		{"nobody there", "secret", []string{"-u", "puller", "--password-stdin", "127.0.0.1:1"}, 1, "berth: log in: registry 127.0.0.1:1 can't be reached: connect: connection refused; check its address and port, and that it runs\n"},
		{"no host", "secret", []string{"-u", "puller", "--password-stdin", "a/b"}, 1, `"a/b" is no registry`},
		{"empty", "", []string{"-u", "puller", "--password-stdin", closed}, 1, "read the password: standard input is empty\n"},
		{"no user", "secret", []string{"--password-stdin", closed}, 2, "--password-stdin: it needs --username; berth login --help shows the usage\n"},
		{"two passwords", "secret", []string{"-u", "puller", "-p", "x", "--password-stdin", closed}, 2, "--password and --password-stdin: give one of them"},
		{"user alone", "", []string{"-u", "puller", closed}, 1, "standard input is no terminal"},
		{"two registries", "", []string{closed, open}, 2, "login takes one registry"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			said := h.logIn(t, tt.password, tt.args...)
			if said.Code != tt.code || said.Out != "" || strings.Count(said.Err, "\n") != 1 || !strings.Contains(said.Err, tt.says) {
				t.Errorf("%+v, want %d and %q", said, tt.code, tt.says)
			}
			if after, err := os.ReadFile(file); string(after) != string(before) || err != nil {
				t.Errorf("the file is now %s, %v", after, err)
			}
		})
	}
	said := h.logIn(t, "", "-u", "puller", "-p", "secret", closed)
	if said.Code != 0 || !strings.HasPrefix(said.Err, "WARNING! Other users of this machine can see --password") {
		t.Errorf("%+v", said)
	}
	if said := h.logIn(t, "any", "-u", "puller", "--password-stdin", open); said.Code != 0 || !strings.Contains(said.Err, "accepts requests without a login, and has not checked the password") {
		t.Errorf("%+v", said)
	}
}

// TestSudo: under sudo, logins are those of the user who calls it, and that user leads root to no
// other file.
func TestSudo(t *testing.T) {
	push(t, "oci:"+busybox+":latest", "docker://"+closed+"/box:1", "--dest-creds", "puller:secret")
	name := closed + "/box:1"
	const alice = "12345"
	sudo := func(t *testing.T) (h home, user string) {
		t.Helper()
		user, err := os.MkdirTemp("", "user") // in a directory that all can enter
		rig.Must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(user) })
		rig.Must(t, os.Chown(user, 12345, 12345))
		h = newHome(t)
		h.env = []string{"SUDO_UID=" + alice, "SUDO_GID=" + alice, "SUDO_HOME=" + user}
		return h, user
	}
	login := `{"auths":{"` + closed + `":{"auth":"cHVsbGVyOnNlY3JldA=="}}}`
	t.Run("login", func(t *testing.T) {
		h, user := sudo(t)
		if said := h.logIn(t, "secret", "-u", "puller", "--password-stdin", closed); said.Code != 0 || !strings.Contains(said.Err, user+"/.docker/config.json") {
			t.Fatalf("%+v", said)
		}
		out, err := exec.Command("stat", "-c", "%u:%g:%a", user+"/.docker", user+"/.docker/config.json").Output()
		if want := "12345:12345:700\n12345:12345:600\n"; string(out) != want || err != nil {
			t.Errorf("%s, %v, want %s", out, err, want)
		}
		if _, err := os.Stat(h.dir + "/.docker"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("root has a login: %v", err)
		}
		h.must(t, "pull", "--quiet", name)
		other := newHome(t)
		other.env = []string{"SUDO_UID=12346", "SUDO_GID=12346", "SUDO_HOME=" + user}
		other.fails(t, 1, "as user 12346: read credentials "+user+"/.docker/config.json: open "+user+"/.docker/config.json: permission denied", "pull", name)
		h.must(t, "logout", closed)
		h.fails(t, 1, "access denied", "pull", name)
	})
	t.Run("root's own comes after", func(t *testing.T) {
		h, _ := sudo(t)
		rig.Must(t, os.Mkdir(h.dir+"/.docker", 0o700))
		rig.Must(t, os.WriteFile(h.dir+"/.docker/config.json", []byte(login), 0o600))
		h.must(t, "pull", "--quiet", name)
	})
	// Each way in which a user's directory is named must be the user's to open.
	for how, environment := range map[string]string{"sudo": "SUDO_UID=" + alice, "sudo -E": "DOCKER_CONFIG=USER/.docker", "HOME": "HOME=USER"} {
		t.Run("link with "+how, func(t *testing.T) {
			h, user := sudo(t)
			secret := filepath.Join(h.dir, "secret")
			rig.Must(t, os.WriteFile(secret, []byte(login), 0o600))
			rig.Must(t, os.Mkdir(user+"/.docker", 0o755))
			rig.Must(t, os.Symlink(secret, user+"/.docker/config.json"))
			rig.Must(t, os.Chown(user+"/.docker", 12345, 12345))
			if how != "sudo" {
				h.env = []string{strings.ReplaceAll(environment, "USER", user)}
			}
			h.fails(t, 1, "as user 12345: read credentials "+user+"/.docker/config.json: open "+user+"/.docker/config.json: permission denied", "pull", name)
			if said := h.logIn(t, "secret", "-u", "puller", "--password-stdin", closed); said.Code != 1 {
				t.Errorf("%+v", said)
			}
			if after, err := os.ReadFile(secret); string(after) != login || err != nil {
				t.Errorf("root's file is now %s, %v", after, err)
			}
		})
	}
}

// TestLoginHelper: a credential helper that docker's file names keeps the password.
func TestLoginHelper(t *testing.T) {
	h := newHome(t)
	rig.Must(t, errors.Join(os.Mkdir(h.dir+"/bin", 0o755), os.Mkdir(h.dir+"/.docker", 0o755)))
	rig.Must(t, os.WriteFile(h.dir+"/bin/docker-credential-test", []byte("#!/bin/sh\ncase $1 in store) cat > $HOME/kept ;; get) cat $HOME/kept && exit; echo credentials not found; exit 1 ;; erase) rm $HOME/kept ;; esac\n"), 0o755))
	file := h.dir + "/.docker/config.json"
	rig.Must(t, os.WriteFile(file, []byte(`{"credsStore":"test","proxies":{"default":{}}}`), 0o644))
	h.env = []string{"PATH=" + h.dir + "/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
	said := h.logIn(t, "secret", "-u", "puller", "--password-stdin", closed)
	if said.Code != 0 || said.Err != "" {
		t.Fatalf("%+v", said)
	}
	var kept struct{ ServerURL, Username, Secret string }
	data, err := os.ReadFile(h.dir + "/kept")
	rig.Must(t, err)
	rig.Must(t, json.Unmarshal(data, &kept))
	if kept.ServerURL != closed || kept.Username != "puller" || kept.Secret != "secret" {
		t.Errorf("%+v", kept)
	}
	data, err = os.ReadFile(file)
	rig.Must(t, err)
	if text := string(data); strings.Contains(text, "auth\"") || !strings.Contains(text, "proxies") {
		t.Errorf("%s", text)
	}
	h.must(t, "login", closed)
	h.must(t, "logout", closed)
	if _, err := os.Stat(h.dir + "/kept"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the helper keeps it: %v", err)
	}
}
