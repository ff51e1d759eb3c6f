package credentials

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// TestMain also is the child process of another user.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == ChildArgument {
		if err := Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if path := os.Getenv("BERTH_TEST_FIND"); path != "" {
		file := registry.CredentialFile{Path: path, User: &registry.User{UID: stranger, GID: stranger, Home: filepath.Dir(path)}}
		l, _, err := Find(context.Background(), []registry.CredentialFile{file}, registry.Name{Host: "reg.x"})
		fmt.Println(l.User, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const stranger = 12345

// homeOf makes the home of a user in a directory that all can enter.
func homeOf(t *testing.T, uid uint32) *registry.User {
	t.Helper()
	dir, err := os.MkdirTemp("", "home")
	testutil.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testutil.Must(t, os.Chown(dir, int(uid), int(uid)))
	return &registry.User{UID: uid, GID: uid, Home: dir}
}

// Root keeps and finds a user's login as that user: files, directories and helpers are the user's.
func TestOtherUser(t *testing.T) {
	testutil.NeedRoot(t)
	u := homeOf(t, stranger)
	file := registry.CredentialFile{Path: filepath.Join(u.Home, ".docker/config.json"), User: u}
	_, err := Store(t.Context(), file, "reg.x", Login{User: "u", Secret: "p"})
	testutil.Must(t, err)
	for path, mode := range map[string]os.FileMode{file.Path: 0o600, filepath.Dir(file.Path): 0o700 | os.ModeDir} {
		var st unix.Stat_t
		fi, err := os.Stat(path)
		testutil.Must(t, err)
		testutil.Must(t, unix.Stat(path, &st))
		if st.Uid != stranger || st.Gid != stranger || fi.Mode() != mode {
			t.Errorf("%s: %d:%d %v", path, st.Uid, st.Gid, fi.Mode())
		}
	}
	l, at, err := Find(t.Context(), []registry.CredentialFile{{Path: "/no/such"}, file}, registry.Name{Host: "reg.x"})
	if err != nil || l != (Login{User: "u", Secret: "p"}) || at != file.Path {
		t.Errorf("finds %+v in %q, %v", l, at, err)
	}
	if _, _, err := Find(t.Context(), []registry.CredentialFile{{Path: file.Path}}, registry.Name{Host: "reg.x"}); err == nil || !strings.Contains(err.Error(), "it belongs to user 12345") {
		t.Errorf("root has read it: %v", err)
	}

	// The helper's environment and groups are the user's.
	bin := homeOf(t, 0).Home
	testutil.Must(t, os.Chmod(bin, 0o755))
	script := "#!/bin/sh\necho \"{\\\"Username\\\":\\\"$(id -u):$(id -g):$(id -G):$HOME:$SECRET\\\",\\\"Secret\\\":\\\"p\\\"}\"\n"
	testutil.Must(t, os.WriteFile(filepath.Join(bin, "docker-credential-who"), []byte(script), 0o755))
	testutil.Must(t, os.WriteFile(file.Path, []byte(`{"credsStore":"who"}`), 0o644))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("SECRET", "root's own")
	l, _, err = Find(t.Context(), []registry.CredentialFile{file}, registry.Name{Host: "reg.x"})
	if want := fmt.Sprintf("12345:12345:12345:%s:", u.Home); err != nil || l.User != want {
		t.Errorf("the helper is %q, %v; want %q", l.User, err, want)
	}
}

// The helper of a user has neither the descriptors nor the keys of root's process.
func TestNothingOfRoots(t *testing.T) {
	testutil.NeedRoot(t)
	u := homeOf(t, stranger)
	secret, err := os.CreateTemp(t.TempDir(), "secret")
	testutil.Must(t, err)
	defer secret.Close() // only passed on
	bin := homeOf(t, 0).Home
	testutil.Must(t, os.Chmod(bin, 0o755))
	script := "#!/bin/sh\necho \"{\\\"Username\\\":\\\"$(ls -l /proc/$$/fd | grep -c secret)$(grep -c berth-test-key /proc/keys)\\\",\\\"Secret\\\":\\\"p\\\"}\"\n"
	testutil.Must(t, os.WriteFile(filepath.Join(bin, "docker-credential-who"), []byte(script), 0o755))
	path := filepath.Join(u.Home, "config.json")
	testutil.Must(t, os.WriteFile(path, []byte(`{"credsStore":"who"}`), 0o644))
	testutil.Must(t, os.Chown(path, stranger, stranger))

	runtime.LockOSThread() // never unlocked: the thread has a keyring of its own
	_, err = unix.KeyctlJoinSessionKeyring("berth-test")
	testutil.Must(t, err)
	const session = -3 // KEY_SPEC_SESSION_KEYRING
	_, err = unix.AddKey("user", "berth-test-key", []byte("secret"), session)
	testutil.Must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BERTH_TEST_FIND="+path, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.ExtraFiles = []*os.File{secret}
	out, err := cmd.CombinedOutput()
	if string(out) != "00 <nil>\n" || err != nil {
		t.Errorf("descriptors and keys: %s, %v", out, err)
	}
}

// A user's links, FIFOs and directories lead root nowhere.
func TestHostileUser(t *testing.T) {
	testutil.NeedRoot(t)
	secret := filepath.Join(homeOf(t, 0).Home, "secret")
	login := `{"auths":{"reg.x":{"auth":"` + basicAuth("root", "secret") + `"}}}`
	testutil.Must(t, os.WriteFile(secret, []byte(login), 0o600))
	group := filepath.Join(homeOf(t, 0).Home, "group")
	testutil.Must(t, os.Chmod(filepath.Dir(group), 0o755))
	testutil.Must(t, os.WriteFile(group, []byte(login), 0o640))
	for name, place := range map[string]func(path string) error{
		"a link to a file of root's":            func(path string) error { return os.Symlink(secret, path) },
		"a link to a file of root's group":      func(path string) error { return os.Symlink(group, path) },
		"a link to a file of the system":        func(path string) error { return os.Symlink("/etc/shadow", path) },
		"a FIFO":                                func(path string) error { return unix.Mkfifo(path, 0o666) },
		"a device":                              func(path string) error { return os.Symlink("/dev/zero", path) },
		"a directory":                           func(path string) error { return os.Mkdir(path, 0o755) },
		"a link to what its own process can do": func(path string) error { return os.Symlink("/proc/self/environ", path) },
	} {
		t.Run(name, func(t *testing.T) {
			u := homeOf(t, stranger)
			file := registry.CredentialFile{Path: filepath.Join(u.Home, "config.json"), User: u}
			testutil.Must(t, place(file.Path))
			l, _, err := Find(t.Context(), []registry.CredentialFile{file}, registry.Name{Host: "reg.x"})
			if err == nil || l != (Login{}) || strings.Contains(err.Error(), "root:") {
				t.Errorf("finds %+v, %v", l, err)
			}
			before, _ := os.ReadFile(secret)
			_, err = Store(t.Context(), file, "reg.y", Login{User: "u", Secret: "p"})
			if after, _ := os.ReadFile(secret); string(before) != string(after) || err == nil {
				t.Errorf("root's file is now %s, %v", after, err)
			}
		})
	}
}
