package engines

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// Annotations that set properties of a container's systemd unit, or its place, open no accelerator:
// not at the start, not when systemd writes its rules again, and not for a container that lifts the
// rules of its own cgroup. ctr passes any annotation on.
func TestSystemdProperties(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range []struct {
		suite, cgroup string
		runtimes      []string
	}{{"forky", "v2", []string{"runc", "crun"}}, {"bookworm", "v1", []string{"runc"}}} {
		t.Run(on.suite+"/"+on.cgroup, func(t *testing.T) {
			c := &ctrHost{server: server{startWith(t, rack.Options{Cgroup: on.cgroup, Systemd: true}, "-systemd-properties", on.suite)}}
			c.root = filepath.Join(c.dir, "root")
			rig.Must(t, os.CopyFS(c.root, os.DirFS(image)))
			rig.Must(t, os.WriteFile(c.root+"/detach", []byte("detach /sys/fs/cgroup\n"), 0o644))
			c.until(t, "ctr", "version")
			for _, runtime := range on.runtimes {
				c.setRuntime(t, runtime)
				for _, tt := range []struct{ annotation, refused string }{
					{"org.systemd.property.DevicePolicy='auto'", ""},
					{"org.systemd.property.DeviceAllow=[('char-*', 'rwm')]", "org.systemd.property.DeviceAllow|invalid string"}, // by the runtime
					{"org.systemd.property.Slice='other.slice'", "annotation org.systemd.property.Slice would put the container into another slice"},
					{"run.oci.systemd.subgroup=../../../other.slice/inner", "annotation run.oci.systemd.subgroup: .* is not the name of a cgroup"},
				} {
					for _, gpus := range []string{"2", "none"} {
						t.Run(strings.Join([]string{runtime, tt.annotation, gpus}, "/"), func(t *testing.T) { c.annotated(t, tt.annotation, gpus, tt.refused) })
					}
				}
			}
		})
	}
}

// annotated starts a container that could lift its device rules, with an annotation. It
// opens what it has leased until it ends, or is refused in a line of that pattern.
func (c *ctrHost) annotated(t *testing.T, annotation, gpus, refused string) {
	t.Helper()
	id := newID()
	words := slices.Insert(c.words(id, gpus, "--runc-systemd-cgroup", "--cgroup", "system.slice:test:"+id, "--annotation", annotation), 2,
		"--cap-add=CAP_SYS_ADMIN", "--mount", "type=cgroup,src=cgroup,dst=/sys/fs/cgroup,options=rw")
	if i := slices.Index(words, "berth.gpus=none"); i > 0 {
		words = slices.Delete(words, i-1, i+1)
	}
	got := c.run(t, words...)
	if refused != "" {
		if got.code == 0 || !regexp.MustCompile(refused).MatchString(got.err) {
			t.Errorf("exit code %d: %s", got.code, got.err)
		}
		if got.code != 0 {
			c.run(t, "ctr", "container", "rm", id) // older ones leave it
			return
		}
	}
	if got.code != 0 {
		t.Fatalf("exit code %d: %s", got.code, got.err)
	}
	defer c.removeTask(t, id)
	for _, words := range [][]string{{"true"}, {"systemctl", "daemon-reload"}, {"systemctl", "set-property", "--runtime", "test-" + id + ".scope", "TasksMax=1000"}} {
		c.do(t, words...)
		c.checkLease(t, id)
	}
	if c.cgroup == "v2" { // on version 1 a container can't lift its rules from inside
		if got := c.do(t, "ctr", "task", "exec", "--exec-id", newID(), id, "/climb", "/detach"); !strings.Contains(got, "detached") {
			t.Errorf("the container takes off its rules: %s", got)
		}
		c.checkLease(t, id)
	}
}
