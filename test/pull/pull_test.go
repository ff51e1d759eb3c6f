// Package pull gets images as people do: from a real registry, of archives that other
// programs wrote, by the programs as built, which are killed at random.
package pull

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

const busybox = "../../.cache/image/busybox"

var (
	node *rig.Node
	// open is a registry without authentication; closed one for the user puller with the password "secret".
	open, closed string
)

func TestMain(m *testing.M) { rig.Main(m, setUp) }

func setUp(r *rig.Rig) (err error) {
	if err := rig.MakeImages(); err != nil {
		return err
	}
	if open, err = serve(r, "open", ""); err != nil {
		return err
	}
	passwords := filepath.Join(r.Dir, "htpasswd")
	// "secret", as htpasswd -B writes it.
	line := "puller:$2y$05$CMUmM9ljYlwXkqxTAGVtneeRzx0TQsexaqbEtqxo89GgIW0O6IjpG\n"
	if err := os.WriteFile(passwords, []byte(line), 0o600); err != nil {
		return err
	}
	if closed, err = serve(r, "closed", "auth: {htpasswd: {realm: test, path: "+passwords+"}}\n"); err != nil {
		return err
	}
	node, err = r.Start("dgx-h100", "v2")
	return err
}

// serve starts Debian's registry, which ends with the test binary.
func serve(r *rig.Rig, name, more string) (host string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	host = l.Addr().String()
	if err := l.Close(); err != nil {
		return "", err
	}
	dir := filepath.Join(r.Dir, name)
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\n%s", dir, host, more)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+".yml", []byte(config), 0o600)); err != nil {
		return "", err
	}
	cmd := exec.Command("setpriv", "--pdeathsig", "KILL", "docker-registry", "serve", dir+".yml")
	log, err := os.OpenFile(dir+".log", os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	started := make(chan error, 1)
	go func() { // pdeathsig goes by the thread that starts it: this one stays
		started <- cmd.Start()
		_ = cmd.Wait() // it is killed in the end
	}()
	if err := <-started; err != nil {
		return "", err
	}
	for range 500 {
		if res, err := http.Get("http://" + host + "/v2/"); err == nil {
			return host, res.Body.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	said, err := os.ReadFile(dir + ".log")
	return "", errors.Join(fmt.Errorf("registry %s doesn't answer: %s", name, said), err)
}

// push has skopeo copy an image, as others do.
func push(t *testing.T, from, to string, flags ...string) {
	t.Helper()
	args := append([]string{"--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"}, flags...)
	if out, err := exec.Command("skopeo", append(args, from, to)...).CombinedOutput(); err != nil {
		t.Fatalf("skopeo copy %s %s: %v: %s", from, to, err, out)
	}
}

// home is a store of its own.
type home struct {
	dir, config string
	env         []string
}

func newHome(t *testing.T) home {
	t.Helper()
	h := home{dir: t.TempDir()}
	h.config = filepath.Join(h.dir, "config.toml")
	rig.Must(t, os.WriteFile(h.config, fmt.Appendf(nil, "state = %q\ndata = %q\n", h.dir+"/state", h.dir+"/data"), 0o600))
	return h
}

func (h home) command(args ...string) *exec.Cmd {
	env := append([]string{"HOME=" + h.dir, "XDG_RUNTIME_DIR=" + h.dir, "BERTH_CONFIG=" + h.config}, h.env...)
	return node.Command("env", append(append(env, node.Berth), args...)...)
}

// berth runs a verb to its end.
func (h home) berth(t *testing.T, args ...string) rig.Said {
	t.Helper()
	return node.Run(t, h.command(args...))
}

func (h home) must(t *testing.T, args ...string) rig.Said {
	t.Helper()
	said := h.berth(t, args...)
	if said.Code != 0 {
		t.Fatalf("berth %s: exit code %d: %s", strings.Join(args, " "), said.Code, said.Err)
	}
	return said
}

// fails runs a verb that has to fail with one line.
func (h home) fails(t *testing.T, code int, says string, args ...string) {
	t.Helper()
	said := h.berth(t, args...)
	if said.Code != code || strings.Count(said.Err, "\n") != 1 || !strings.HasPrefix(said.Err, "berth: ") || !strings.Contains(said.Err, says) {
		t.Errorf("berth %s: exit code %d, says %q; want %d and %q", strings.Join(args, " "), said.Code, said.Err, code, says)
	}
}

type listed struct {
	ID     string
	Short  string `json:"short"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	Broken bool   `json:"broken"`
}

func (h home) listImages(t *testing.T) (all []listed) {
	t.Helper()
	rig.Must(t, json.Unmarshal([]byte(h.must(t, "images", "--json").Out), &all))
	return all
}

func TestRegistry(t *testing.T) {
	push(t, "oci:"+busybox+":latest", "docker://"+open+"/team/box:1")
	name := open + "/team/box:1"
	h := newHome(t)
	if out := h.must(t, "images").Out; !strings.HasPrefix(out, "there are no images") {
		t.Errorf("says %q", out)
	}
	h.fails(t, 125, "image "+name+" is not here, and pulling wasn't wanted; berth pull pulls it", "run", "--pull", "never", name, "true")
	if out := h.must(t, "run", name, "echo", "hello").Out; out != "hello\n" {
		t.Errorf("says %q", out)
	}
	for _, when := range []string{"never", "missing", "always"} {
		if out := h.must(t, "run", "--pull", when, "--rm", name, "echo", when).Out; out != when+"\n" {
			t.Errorf("says %q", out)
		}
	}
	said := h.must(t, "pull", name, "docker://"+name)
	if want := name + "\n" + name + "\n"; said.Out != want || !strings.Contains(said.Err, "already stored, with 1 layer") {
		t.Errorf("says %q and %q", said.Out, said.Err)
	}
	all := h.listImages(t)
	if len(all) != 1 || all[0].Short != name || all[0].Size == 0 || all[0].Broken {
		t.Fatalf("%+v", all)
	}
	pinned := open + "/team/box@" + all[0].Digest
	h.must(t, "run", pinned, "true")
	h.fails(t, 1, "not found in registry "+open+"; check the name and the tag", "pull", open+"/team/box:2")
	h.fails(t, 1, "; check the name and the tag", "pull", open+"/nothing/here")
	h.fails(t, 125, "image is for linux/amd64, and linux/s390x is wanted", "run", "--platform", "linux/s390x", "--pull", "always", name, "true")
	h.fails(t, 125, `--pull "sometimes": there are always, missing and never`, "run", "--pull", "sometimes", name, "true")
	h.fails(t, 1, `image "nothing" is not here`, "rmi", "nothing")
	id := strings.TrimPrefix(all[0].ID, "sha256:")[:12]
	if out := h.must(t, "rmi", "--generate-bash-completion").Out; !strings.Contains(out, name+"\n"+id+"\n") {
		t.Errorf("a shell is offered %q, without %s and its id", out, name)
	}
	if out := h.must(t, "rmi", name).Out; out != "Untagged: "+name+"\n" {
		t.Errorf("says %q", out)
	}
	h.must(t, "run", "--pull", "never", pinned, "true") // its other name stays
	if said := h.must(t, "prune", "--all"); said.Out != pinned+"\n" || !strings.Contains(said.Err, "1 layer") {
		t.Errorf("%+v", said)
	}
	if left := listFiles(t, h.dir+"/data/images"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// listFiles returns those below a directory that aren't directories.
func listFiles(t *testing.T, dir string) (found []string) {
	t.Helper()
	rig.Must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, path)
		}
		return err
	}))
	return found
}

// Credentials are found where docker and podman leave them.
func TestCredentials(t *testing.T) {
	push(t, "oci:"+busybox+":latest", "docker://"+closed+"/box:1", "--dest-creds", "puller:secret")
	name := closed + "/box:1"
	newHome(t).fails(t, 1, "access denied to "+closed+"/box: registry "+closed+" asks for other credentials; check the name, or log in", "pull", name)
	auth := `{"auths":{"` + closed + `":{"auth":"cHVsbGVyOnNlY3JldA=="}}}`
	write := func(t *testing.T, path, text string) {
		rig.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)))
	}
	for _, tt := range []struct {
		name, file, text string
		env              string
	}{
		{"docker", ".docker/config.json", auth, ""},
		{"DOCKER_CONFIG", "elsewhere/config.json", auth, "DOCKER_CONFIG=HOME/elsewhere"},
		{"podman", "containers/auth.json", auth, ""},
		{"REGISTRY_AUTH_FILE", "my.json", auth, "REGISTRY_AUTH_FILE=HOME/my.json"},
		{"skopeo", ".config/containers/auth.json", auth, ""},
		{"helper", ".docker/config.json", `{"credsStore":"test"}`, "PATH=HOME/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
		{"helper of one registry", ".docker/config.json", `{"credHelpers":{"` + closed + `":"test"}}`, "PATH=HOME/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHome(t)
			write(t, filepath.Join(h.dir, tt.file), tt.text)
			write(t, filepath.Join(h.dir, "bin/docker-credential-test"), "#!/bin/sh\necho '{\"Username\":\"puller\",\"Secret\":\"secret\"}'\n")
			if tt.env != "" {
				h.env = []string{strings.ReplaceAll(tt.env, "HOME", h.dir)}
			}
			h.must(t, "pull", "--quiet", name)
		})
	}
	h := newHome(t)
	write(t, filepath.Join(h.dir, ".docker/config.json"), strings.Replace(auth, "cHVsbGVyOnNlY3JldA==", "cHVsbGVyOndyb25n", 1))
	h.fails(t, 125, "access denied to", "run", name, "true")
}

// What skopeo writes, as docker save and podman save do, is run as it is.
func TestArchives(t *testing.T) {
	dir := t.TempDir()
	for _, kind := range []string{"docker-archive", "oci-archive"} {
		file := filepath.Join(dir, kind+".tar")
		push(t, "oci:"+busybox+":latest", kind+":"+file+":box:1")
		if out, err := exec.Command("gzip", "-k", file).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		tag := ":box:1"
		for _, path := range []string{file, file + ".gz"} {
			h := newHome(t)
			for _, ref := range []string{kind + ":" + path, kind + ":" + path + tag} {
				if out := h.must(t, "run", ref, "echo", kind).Out; out != kind+"\n" {
					t.Errorf("%s says %q", ref, out)
				}
			}
			h.fails(t, 125, "no image is tagged", "run", kind+":"+path+":other", "true")
		}
	}
}

// podman save is another writer of the same formats.
func TestPodmanSave(t *testing.T) {
	h := newHome(t)
	podman := func(args ...string) {
		t.Helper()
		args = append([]string{"--root", h.dir + "/root", "--runroot", h.dir + "/run", "--storage-driver", "vfs"}, args...)
		if out, err := exec.Command("podman", args...).CombinedOutput(); err != nil {
			t.Fatalf("podman %v: %v: %s", args, err, out)
		}
	}
	push(t, "oci:"+busybox+":latest", "docker://"+open+"/saved:1")
	podman("pull", "--quiet", "--tls-verify=false", open+"/saved:1")
	for _, kind := range []string{"docker-archive", "oci-archive"} {
		file := filepath.Join(h.dir, kind+".tar")
		podman("save", "--quiet", "--format", kind, "-o", file, open+"/saved:1")
		if out := h.must(t, "run", kind+":"+file, "echo", kind).Out; out != kind+"\n" {
			t.Errorf("says %q", out)
		}
	}
}
