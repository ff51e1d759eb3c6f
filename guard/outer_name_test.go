package guard

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

func TestOuterNames(t *testing.T) {
	for _, tt := range []struct {
		name, own, begins string
		systemd           bool
	}{
		{"of a runtime", "/docker/c1", "/docker/berth-", false},
		{"at the top", "/c1", "/berth-", false},
		{"of systemd", "/system.slice/docker-c1.scope", "/system.slice/system-berth", true},
		{"in slices", "/a.slice/a-b.slice/docker-c1.scope", "/a.slice/a-b.slice/a-b-berth", true},
		{"in the root slice", "/docker-c1.scope", "/berth", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := Guard{}
			outer, err := n.newOuterPath(tt.own, tt.systemd)
			if err != nil || !strings.HasPrefix(outer, tt.begins) {
				t.Fatalf("got %q, %v", outer, err)
			}
			pid, start, ok := creatorOf(path.Base(outer))
			if !ok || pid != os.Getpid() || !n.isRunning(pid, start) || n.isRunning(pid, start+1) {
				t.Errorf("%s is of process %d, %d, %v", outer, pid, start, ok)
			}
			if got := enclosingOuter(outer + "/" + path.Base(tt.own)); got != outer {
				t.Errorf("got %q", got)
			}
			if !tt.systemd {
				return
			}
			if got, err := cgroup.ExpandSlice(path.Base(outer)); got != outer || err != nil {
				t.Errorf("systemd puts it at %q, %v", got, err)
			}
		})
	}
	for _, other := range []string{
		"", "berth-", "berth-1", "berth-1.2", "berth-1.2-", "berth-a.2-x", "docker-1.2-x", "berth-1-x", "berth1.2-x", "a-berth-1.2-x",
		".slice", "berth.slice", "a-berth1.slice", "a-berth1.2.slice", "a-berth1.2..slice", "a-berth-1.2-x.slice", "docker1.2.x.slice", "berth1.2.x-a.slice",
	} {
		if _, _, ok := creatorOf(other); ok {
			t.Errorf("%q counts as an outer cgroup", other)
		}
	}
	if got := enclosingOuter("/docker/c1"); got != "" {
		t.Errorf("got %q", got)
	}
}

// procfs makes a procfs with the start time of this process and the cgroup of the first one.
func procfs(t *testing.T, start uint64, first string) gpu.Host {
	t.Helper()
	proc := t.TempDir()
	own := filepath.Join(proc, strconv.Itoa(os.Getpid()))
	stat := fmt.Sprintf("%d (berth) S %s%d 0\n", os.Getpid(), strings.Repeat("0 ", 18), start)
	if err := errors.Join(
		os.Mkdir(own, 0o755), os.WriteFile(own+"/stat", []byte(stat), 0o600),
		os.MkdirAll(proc+"/1", 0o755), os.WriteFile(proc+"/1/cgroup", []byte("0::"+first+"\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return gpu.Host{Proc: proc}
}

// The name of an outer cgroup has its creator, whose life is checked in the same procfs.
func TestOuterNameHasCreator(t *testing.T) {
	n := Guard{Host: procfs(t, 4711, "/")}
	outer, err := n.newOuterPath("/docker/c1", false)
	if err != nil {
		t.Fatal(err)
	}
	if pid, start, ok := creatorOf(path.Base(outer)); !ok || start != 4711 || !n.isRunning(pid, start) {
		t.Errorf("%s is of process %d, %d, %v", outer, pid, start, ok)
	}
}

// There is no outer slice where systemd would not adopt it.
func TestCanBeSlice(t *testing.T) {
	root := os.Geteuid() == 0
	for _, tt := range []struct {
		name, own, first string
		version          cgroup.Version
		want             bool
	}{
		{"docker", "/system.slice/docker-c1.scope", "/init.scope", cgroup.V2, root},
		{"kubernetes", "/kubepods.slice/kubepods-pod1.slice/cri-containerd-c1.scope", "/init.scope", cgroup.V2, root},
		{"version 1", "/system.slice/docker-c1.scope", "/init.scope", cgroup.V1, false},
		{"a slice as the container", "/a.slice/a-b.slice", "/init.scope", cgroup.V2, false},
		{"systemd somewhere else", "/system.slice/docker-c1.scope", "/docker/4f/init.scope", cgroup.V2, false},
		{"no systemd", "/system.slice/docker-c1.scope", "/", cgroup.V2, false},
		{"in a service", "/system.slice/a.service/docker-c1.scope", "/init.scope", cgroup.V2, false},
		{"a slice that systemd names otherwise", "/memory.slice/memory-a.slice/docker-c1.scope", "/init.scope", cgroup.V2, false},
		{"another one", "/_a.slice/docker-c1.scope", "/init.scope", cgroup.V2, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := Guard{Host: procfs(t, 1, tt.first), Cgroups: cgroup.Hierarchy{Version: tt.version}}
			if got, err := n.canBeSlice(tt.own); got != tt.want || err != nil {
				t.Errorf("got %v, %v", got, err)
			}
			spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_ADMIN"}}}}
			if outer, ok, err := n.OuterCgroupPath(spec, tt.own, true, false); ok != tt.want || (outer != "") != ok || err != nil {
				t.Errorf("got %q, %v, %v", outer, ok, err)
			}
			if _, ok, err := n.OuterCgroupPath(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}, tt.own, true, false); ok || err != nil {
				t.Errorf("a container that can't lift its rules has one: %v", err)
			}
		})
	}
}
