package faults

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// makeDisk returns a block device of that size with a file system that mkfs has made, as a
// node below a directory of the test's, and the name of the loop device. It lasts for the test.
func makeDisk(t *testing.T, size string, mkfs ...string) (device, name string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "disk")
	do := func(words ...string) string {
		t.Helper()
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", words, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	do("truncate", "-s", size, file)
	do(append(mkfs, file)...)
	loop := do("losetup", "--find", "--show", file)
	t.Cleanup(func() { do("losetup", "--detach", loop) })
	var st unix.Stat_t
	rig.Must(t, unix.Stat(loop, &st))
	device = filepath.Join(dir, "device")
	rig.Must(t, unix.Mknod(device, unix.S_IFBLK|0o600, int(st.Rdev)))
	return device, filepath.Base(loop)
}

// TestFileSystems: berth's state and data are on a file system of each kind, one of FUSE in
// place of NFS. Leases, locks, images and tasks work. Where overlayfs can't write, a task is
// refused in one line that says so, as doctor does.
func TestFileSystems(t *testing.T) {
	const refused = "its file system can't be the writable layer of an overlay: invalid argument; set data in /etc/berth/config.toml to a directory on ext4, xfs, btrfs or tmpfs"
	disk := func(mkfs ...string) func(*testing.T, server, string) {
		return func(t *testing.T, s server, at string) {
			device, _ := makeDisk(t, "1G", mkfs...)
			s.Do(t, "mount", device, at)
		}
	}
	for _, tt := range []struct {
		name  string
		mount func(t *testing.T, s server, at string)
		kind  string // as doctor calls one to which overlayfs can't write
	}{
		{"ext4", disk("mkfs.ext4", "-q"), ""},
		{"xfs", disk("mkfs.xfs", "-q"), ""},
		{"btrfs", disk("mkfs.btrfs", "-q"), ""},
		{"tmpfs", func(t *testing.T, s server, at string) {
			s.Do(t, "mount", "-t", "tmpfs", "-o", "mode=755,size=1g", "tmpfs", at)
		}, ""},
		{"overlay", func(t *testing.T, s server, at string) {
			dir := t.TempDir()
			s.Do(t, "mount", "-t", "tmpfs", "tmpfs", dir)
			s.Do(t, "mkdir", "-m", "755", dir+"/lower", dir+"/upper", dir+"/work")
			s.Do(t, "mount", "-t", "overlay", "-o", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir), "overlay", at)
		}, "an overlay"},
		{"fuse", func(t *testing.T, s server, at string) {
			dir := t.TempDir()
			s.Do(t, "mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", dir)
			s.Do(t, "bindfs", "-o", "nonempty", dir, at)
		}, "FUSE"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := shared.Start("dgx-h100", "v2")
			rig.Must(t, err)
			s := server{n, "runc"}
			for _, at := range []string{"/run/berth", "/var/lib/berth"} {
				s.Do(t, "mkdir", "-p", at)
				tt.mount(t, s, at)
				t.Cleanup(func() { s.Do(t, "umount", "--lazy", at) })
			}
			t.Cleanup(func() { s.Run(t, s.Command("sh", "-c", s.Berth+" ps -aq | xargs -r "+s.Berth+" rm -f")) })
			s.Do(t, s.Berth, "discover")
			s.testContention(t)
			doctor := s.Run(t, s.Command(s.Berth, "doctor"))
			warning := tt.kind + ", on which no container of berth run can write"
			if strings.Contains(doctor.Out, warning) != (tt.kind != "") || strings.Contains(doctor.Out, "failure  data") {
				t.Errorf("berth doctor prints %s", doctor.Out)
			}
			run := []string{"run", "--runtime", s.runtime, "--gpus", "1"}
			if tt.kind != "" {
				if got := s.Run(t, s.Command(s.Berth, append(run, rig.ImagePath(t, "busybox"), "true")...)); got.Code == 0 || !strings.HasSuffix(got.Err, refused+"\n") {
					t.Errorf("berth run: %+v, want %q", got, refused)
				}
			} else {
				if out := s.Do(t, s.Berth, append(run, rig.ImagePath(t, "debian"), "nvidia-smi", "-L")...); !strings.HasPrefix(out, "GPU 0: ") {
					t.Errorf("nvidia-smi prints %q", out)
				}
				s.Do(t, s.Berth, append(run, "-d", "--name", "task", rig.ImagePath(t, "busybox"), "sleep", "1000")...)
				s.Do(t, s.Berth, "exec", "task", "touch", "/etc/passwd", "/new")
				s.Do(t, s.Berth, "stop", "-t", "0", "task")
				s.Do(t, s.Berth, "rm", "task")
			}
			s.Do(t, s.Berth, "prune", "--all", "--force")
			if left := s.Leases(t); len(left) > 0 {
				t.Errorf("leases %+v", left)
			}
		})
	}
}

// testContention has several processes wait for all GPUs at once.
func (s server) testContention(t *testing.T) {
	t.Helper()
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if got := s.Run(t, s.Command(s.Berth, "alloc", "--wait=2m", "8", "--", "true")); got.Code != 0 {
				t.Errorf("berth alloc: %+v", got)
			}
		})
	}
	wait.Wait()
}
