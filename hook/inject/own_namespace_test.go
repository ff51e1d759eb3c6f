package inject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/testutil"
)

// insideVariable has the edits that this program applies in the mount namespace that it is in.
const insideVariable = "BERTH_TEST_INSIDE"

// outsideVariable has the pid of a process in the mount namespace of the program's launcher.
const outsideVariable = "BERTH_TEST_OUTSIDE"

// TestMain runs the tests, or if insideVariable is set, what a launcher calls. Its argument is the container's root.
func TestMain(m *testing.M) {
	text := os.Getenv(insideVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var e edits.Edits
	err := json.Unmarshal([]byte(text), &e)
	if err == nil {
		var outside int
		_, err = fmt.Sscan(os.Getenv(outsideVariable), &outside)
		err = errors.Join(err, Apply(context.Background(), Container{Outside: outside, Root: os.Args[1], Spec: &specs.Spec{}}, e))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// applyInside applies edits by a program that the launcher starts in the container's mount namespace.
func (s *stage) applyInside(e edits.Edits) error {
	s.t.Helper()
	_, err := s.callInside(e, "nsenter", "--mount", "--target", fmt.Sprint(s.pid))
	return err
}

func (s *stage) callInside(e edits.Edits, launcher ...string) (out string, err error) {
	s.t.Helper()
	text, err := json.Marshal(e)
	testutil.Must(s.t, err)
	self, err := os.Executable()
	testutil.Must(s.t, err)
	words := append(launcher, self, s.root)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"="+string(text), fmt.Sprint(outsideVariable, "=", os.Getpid()))
	said, err := cmd.CombinedOutput()
	if err != nil {
		err = errors.New(string(said) + err.Error())
	}
	return string(said), err
}

// TestInside: a program in the container's mount namespace changes the container's files as one outside does.
func TestInside(t *testing.T) {
	s := newStage(t, nil, "mkdir run; mount -t tmpfs tmpfs run")
	e := edits.Edits{Nodes: []edits.Node{nullNode("/dev/x")}, Mounts: []specs.Mount{bindOf(s.host+"/source", "/run/driver"), bindOf(s.host+"/source", "/usr/local/driver")}}
	testutil.Must(t, s.applyInside(e))
	for line, want := range map[string]string{
		"stat -c %t:%T dev/x":                     "1:3",
		"cat run/driver/lib64/libcuda.so.1":       "driver",
		"cat usr/local/driver/lib64/libcuda.so.1": "driver",
	} {
		if got := s.run(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	s.untouched()
}

// TestInsideSharedMounts: where a launcher has bound a directory of the host so that mounts on it would appear on the host, none does.
func TestInsideSharedMounts(t *testing.T) {
	s := newStage(t, nil, "")
	script := `mount -t tmpfs tmpfs $0/volume; mount --make-shared $0/volume; touch $0/volume/x
unshare --mount --propagation unchanged sh -ec 'mount --bind $0/root $0/root; mount --rbind $0/volume $0/root/usr/local; "$@"' $0 "$@"
test ! -s $0/volume/x`
	outer := []string{"unshare", "--mount", "sh", "-ec", script, s.host}
	_, err := s.callInside(edits.Edits{Mounts: []specs.Mount{bindOf(s.host+"/secret", "/usr/local/x")}}, outer...)
	testutil.Must(t, err)
}

// TestInsideLaunchersMounts: no file is made on a file system that the launcher has bound into the container, also one that only its own mount
// namespace has, such as the /tmp of a job or a service.
func TestInsideLaunchersMounts(t *testing.T) {
	s := newStage(t, nil, "")
	script := `mount -t tmpfs tmpfs $0/volume; export ` + outsideVariable + `=$$
unshare --mount sh -ec 'mount --bind $0/root $0/root; mount --bind $0/volume $0/root/usr/local; "$@"' $0 "$@" || ls $0/volume`
	outer := []string{"unshare", "--mount", "sh", "-ec", script, s.host}
	out, err := s.callInside(edits.Edits{Mounts: []specs.Mount{bindOf(s.host+"/source", "/usr/local/x")}}, outer...)
	if want := "mount /usr/local/x: /usr/local in " + s.host + "/root is on a file system of the host\n"; err != nil || out != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

// TestInsideHost: in the host's own mount namespace nothing is changed, and neither in that of the launcher.
func TestInsideHost(t *testing.T) {
	s := newStage(t, nil, "")
	_, err := s.callInside(edits.Edits{Nodes: []edits.Node{nullNode("/dev/x")}}, "env")
	if err == nil || !strings.Contains(err.Error(), "no mount namespace of its own") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(s.root + "/dev/x"); err == nil {
		t.Error("a node was made on the host")
	}
}
