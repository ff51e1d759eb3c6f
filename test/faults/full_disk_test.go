package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// smallDisk is a configuration of berth whose data is on a disk of its own.
type smallDisk struct {
	server
	config string
}

// newSmallDisk mounts the disk inside the server.
func newSmallDisk(t *testing.T, s server, megabytes int) smallDisk {
	t.Helper()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	rig.Must(t, os.Mkdir(data, 0o700))
	s.Do(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=700", megabytes), "tmpfs", data)
	t.Cleanup(func() { s.Do(t, "umount", data) }) // which fails if anything is left that uses it
	config := filepath.Join(dir, "config.toml")
	rig.Must(t, os.WriteFile(config, fmt.Appendf(nil, "data = %q\nstate = %q\n", data, filepath.Join(dir, "state")), 0o600))
	return smallDisk{s, config}
}

func (d smallDisk) berth(t *testing.T, words ...string) rig.Said {
	t.Helper()
	return d.Run(t, d.Command(d.Berth, append([]string{"--config", d.config}, words...)...))
}

// must runs a verb that has to succeed, and returns its output.
func (d smallDisk) must(t *testing.T, words ...string) string {
	t.Helper()
	said := d.berth(t, words...)
	if said.Code != 0 {
		t.Fatalf("berth %q: %+v", words, said)
	}
	return said.Out
}

// TestTaskFillsDisk: the launches that fail name the task that has filled the disk, and berth
// system df shows it; when it has ended, berth system prune makes room.
func TestTaskFillsDisk(t *testing.T) {
	d := newSmallDisk(t, startServer(t, "dgx-h100", "v2", "runc"), 24)
	image := rig.ImagePath(t, "busybox")
	d.must(t, "run", "--runtime", d.runtime, image, "true") // unpacks the image
	d.must(t, "run", "-d", "--name", "small", "--runtime", d.runtime, image, "sleep", "1000")
	t.Cleanup(func() { d.berth(t, "rm", "-f", "small", "greedy") })
	d.must(t, "run", "-d", "--name", "greedy", "--runtime", d.runtime, image, "sh", "-c", "trap 'exit 3' TERM; dd if=/dev/zero of=/big bs=64k; touch /full; while :; do sleep 0.1; done")
	for said := (rig.Said{Code: 1}); said.Code != 0; {
		said = d.berth(t, "exec", "greedy", "test", "-e", "/full")
		if state := d.must(t, "ps", "--quiet", "--filter", "name=greedy"); state == "" {
			t.Fatal("the task has ended")
		}
	}
	for _, words := range [][]string{{"run"}, {"run", "-d"}} {
		said := d.berth(t, append(words, "--runtime", d.runtime, image, "true")...)
		want := regexp.MustCompile(`^berth: .*no space left on device; berth prune --all frees what no task uses, and task greedy has written the most, \d+ MB: see berth system df -v\n$`)
		if said.Code != 125 || !want.MatchString(said.Err) {
			t.Errorf("berth %q: %+v", words, said)
		}
	}
	if lines := strings.Split(d.must(t, "system", "df", "-v"), "\n\n"); len(lines) != 3 || !strings.HasPrefix(lines[1], "LAYER ") || !regexp.MustCompile(`^TASK .*\n\S+ .* \d\d MB .* greedy\n.* small\n$`).MatchString(lines[2]) {
		t.Errorf("%q", lines)
	}
	var usage struct {
		Total []struct {
			Type              string
			Total, Active     int
			Size, Reclaimable int64
		}
		Tasks []struct{ Name, State string }
	}
	rig.Must(t, json.Unmarshal([]byte(d.must(t, "system", "df", "--json")), &usage))
	if w := usage.Total[1]; w.Type != "Tasks" || w.Total != 2 || w.Active != 2 || w.Size < 10<<20 || w.Reclaimable != 0 {
		t.Errorf("%+v", usage.Total)
	}
	d.must(t, "stop", "greedy")
	rig.Must(t, json.Unmarshal([]byte(d.must(t, "system", "df", "--json")), &usage))
	if w := usage.Total[1]; w.Active != 1 || w.Reclaimable < 10<<20 {
		t.Errorf("%+v", usage.Total)
	}
	if said := d.berth(t, "system", "prune"); said.Code != 0 || said.Out != "greedy\n" || !regexp.MustCompile(`^freed \d\d MB\n$`).MatchString(said.Err) {
		t.Errorf("%+v", said)
	}
	d.must(t, "run", "--runtime", d.runtime, image, "true")
	if left := d.must(t, "ps", "--all", "--quiet"); strings.Count(left, "\n") != 1 {
		t.Errorf("tasks: %s", left)
	}
}

// TestStorageSizeRefused: where the file system can't bound what a task writes, berth run says why, and
// leaves nothing.
func TestStorageSizeRefused(t *testing.T) {
	d := newSmallDisk(t, startServer(t, "dgx-h100", "v2", "runc"), 24)
	image := rig.ImagePath(t, "busybox")
	for _, words := range [][]string{{"run"}, {"run", "-d"}} {
		said := d.berth(t, append(words, "--runtime", d.runtime, "--storage-opt", "size=10m", image, "true")...)
		want := regexp.MustCompile(`^berth: --storage-opt size: no project quotas: the file system of \S+ must be ext4 or XFS, mounted with -o prjquota \(ext4: after tune2fs -O project,quota\)\n$`)
		if said.Code != 125 || said.Out != "" || !want.MatchString(said.Err) {
			t.Errorf("berth %q: %+v", words, said)
		}
	}
	for _, flags := range [][]string{{"--privileged"}, {"--cap-add", "SYS_ADMIN"}, {"--security-opt", "seccomp=unconfined"}} {
		said := d.berth(t, append(append([]string{"run", "--runtime", d.runtime, "--storage-opt", "size=10m"}, flags...), image, "true")...)
		if said.Code != 125 || !strings.Contains(said.Err, "could lift it") {
			t.Errorf("%q: %+v", flags, said)
		}
	}
	if left := d.must(t, "ps", "--all", "--quiet"); left != "" {
		t.Errorf("tasks: %s", left)
	}
}
