package broker

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// makeDir makes a directory with exactly this mode, which belongs to a user.
func makeDir(t *testing.T, path string, mode os.FileMode, uid int) {
	t.Helper()
	rig.Must(t, os.Mkdir(path, mode))
	rig.Must(t, os.Chmod(path, mode))
	rig.Must(t, os.Chown(path, uid, uid))
}

// makeImage makes a directory with busybox, which can be started as an image.
func (h home) makeImage(dir string) {
	h.t.Helper()
	h.Do(h.t, "sh", "-ec", `mkdir -p "$0/bin"; cp /bin/busybox "$0/bin"; for name in sh cat stat; do ln -s busybox "$0/bin/$name"; done`, dir)
}

// TestSIFDirectoriesOfUsers: root's commands with directories of a user for --workdir and --overlay change nothing where links of the user's lead.
func TestSIFDirectoriesOfUsers(t *testing.T) {
	h, image := sifHome(t, nil)
	victim := filepath.Join(filepath.Dir(image), "victim")
	makeDir(t, victim, 0o700, 0)
	makeDir(t, victim+"/work", 0o700, 0)
	rig.Must(t, os.WriteFile(victim+"/work/file", nil, 0o600))
	state := func() string {
		return h.Do(t, "find", victim, "-printf", "%M %U %P\n")
	}
	before := state()
	for _, tt := range []struct {
		name  string
		words []string
	}{
		{"tmp", []string{"--contain", "--workdir"}},
		{"var_tmp", []string{"--contain", "--workdir"}},
		{"home", []string{"--contain", "--workdir"}},
		{"scratch", []string{"--scratch", "/s", "--workdir"}},
		{"scratch/s", []string{"--scratch", "/s", "--workdir"}},
		{"upper", []string{"--overlay"}},
		{"work", []string{"--overlay"}},
	} {
		dir := filepath.Join(h.dir, strings.ReplaceAll(tt.name, "/", "-"))
		makeDir(t, dir, 0o755, alice)
		rig.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, tt.name)), 0o755))
		rig.Must(t, os.Symlink(victim, filepath.Join(dir, tt.name)))
		words := append(append([]string{"apptainer", "exec"}, tt.words...), dir, image, "sh", "-c", "touch /new /tmp/new /var/tmp/new /s/new $HOME/new; true")
		got := h.Run(t, h.Command(h.Berth, words...))
		if got.Code != 255 || !strings.Contains(got.Err, filepath.Base(tt.name)+" in ") {
			t.Errorf("%s: %+v", tt.name, got)
		}
		if after := state(); after != before {
			t.Fatalf("%s: the directory of root has changed:\n%s\nbefore:\n%s", tt.name, after, before)
		}
		rig.Must(t, os.Remove(filepath.Join(dir, tt.name)))
		makeDir(t, filepath.Join(dir, tt.name), 0o700, alice)
		if got := h.Run(t, h.Command(h.Berth, words...)); got.Code != 0 {
			t.Errorf("%s without a link: %+v", tt.name, got)
		}
	}
}

// TestSIFSocketOfAnother: a user's command takes no image from a process of another user with write access to the directory that XDG_RUNTIME_DIR names.
func TestSIFSocketOfAnother(t *testing.T) {
	h, image := sifHome(t, nil)
	shared := filepath.Join(filepath.Dir(image), "shared")
	for _, dir := range []string{"", "/berth", "/berth/images"} {
		makeDir(t, shared+dir, 0o777, bob)
	}
	words := append([]string{"env", "XDG_RUNTIME_DIR=" + shared}, h.apptainer("exec", image, "cat", "/word")...)
	own := h.run(alice, words...)
	if own.Code != 1 || !strings.Contains(own.Err, "can't open '/word'") {
		t.Fatalf("before: %+v", own)
	}
	started := filepath.Join(h.dir, "started")
	h.start(alice, append(slices.Clone(words[:len(words)-2]), "sh", "-c", "echo >"+started+"; sleep 1000")...) // the image stays mounted
	rig.WaitUntil(t, "the task runs", func() bool {
		_, err := os.Stat(started)
		return err == nil
	})
	names, err := filepath.Glob(shared + "/berth/images/????????????????????????????????")
	rig.Must(t, err)
	if len(names) != 1 {
		t.Fatalf("sockets: %q", names)
	}
	socket := names[0]
	other := filepath.Join(filepath.Dir(image), "other")
	h.makeImage(other)
	rig.Must(t, os.WriteFile(other+"/word", []byte("of another\n"), 0o644))
	stolen := socket + ".of-alice" // still the socket of her process
	rig.Must(t, os.Rename(socket, stolen))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	rig.Must(t, err)
	defer l.Close()
	rig.Must(t, os.Chmod(socket, 0o777))
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			fd, err := unix.OpenTree(unix.AT_FDCWD, other, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err == nil {
				_, _, _ = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil) // alice's command may have ended
				_ = unix.Close(fd)
			}
			_ = conn.Close()
		}
	}()
	holder, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: stolen, Net: "unix"})
	rig.Must(t, err)
	defer holder.Close()
	rights := make([]byte, unix.CmsgSpace(4))
	if n, m, _, _, err := holder.ReadMsgUnix(make([]byte, 1), rights); n > 0 || m > 0 {
		t.Errorf("another user gets a mount of the image: %d, %d, %v", n, m, err)
	}
	got := h.run(alice, words...)
	if got.Code != 255 || got.Out != "" || !strings.Contains(got.Err, "another user's") {
		t.Errorf("%+v", got)
	}
}

// TestSIFSecrets: the script with the environment can be read by its user alone, and isn't left in an image that is written to.
func TestSIFSecrets(t *testing.T) {
	h, image := sifHome(t, nil)
	dir := filepath.Join(h.dir, "image")
	h.makeImage(dir)
	show := "stat -c '%a %u' /dev/.berth"
	for _, tt := range [][]string{{image}, {"--no-mount", "dev", "--writable", dir}} {
		words := append([]string{"SECRET=the-secret", h.Berth, "apptainer", "exec"}, append(tt, "sh", "-c", show)...)
		if got := h.Run(t, h.Command("env", words...)); got != (rig.Said{Out: "600 0\n"}) {
			t.Errorf("%q: %+v", tt, got)
		}
	}
	if left := h.Do(t, "sh", "-c", "grep -rl the-secret "+dir+" || true"); left != "" {
		t.Errorf("left in the image: %s", left)
	}
}

// TestSIFServer: the process that reads an image, which may exploit it, has nothing of its user's but the image: no environment, no open file, and for root no right.
func TestSIFServer(t *testing.T) {
	h, image := sifHome(t, nil)
	secret := filepath.Join(h.dir, "secret")
	rig.Must(t, os.WriteFile(secret, nil, 0o600))
	rig.Must(t, os.Chown(secret, alice, alice))
	const show = `for p in $(pgrep -x squashfuse_ll); do
	[ "$(readlink /proc/$p/fd/3)" = "$0" ] || continue
	tr '\0' '\n' </proc/$p/environ
	grep -E '^(Uid|Gid|Groups|CapEff|CapPrm)' /proc/$p/status | tr -s '\t ' ' '
	for n in $(ls /proc/$p/fd | sort -n); do readlink /proc/$p/fd/$n; done
done; true` // a server may end meanwhile
	const (
		path  = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
		files = "/dev/null\n/dev/null\npipe:\\[[0-9]+\\]\nIMAGE\n/dev/fuse\nIMAGE\n"
	)
	for uid, want := range map[int]string{
		0:     "Uid:( 429[0-9]{7}){4}\nGid:( 429[0-9]{7}){4}\nGroups: ?\nCapPrm: 0+\nCapEff: 0+\n",
		alice: "Uid:( 4711){4}\nGid:( 4711){4}\nGroups: ?\nCapPrm: [0-9a-f]+\nCapEff: [0-9a-f]+\n", // of a user namespace
	} {
		words := []string{"sh", "-c", `exec 9<"$0"; SECRET=the-secret; export SECRET; exec "$@"`, secret}
		task := h.start(uid, append(words, h.apptainer("exec", image, "sleep", "1000")...)...)
		var got string
		rig.WaitUntil(t, "the image is served", func() bool {
			got = h.Do(t, "sh", "-c", show, image)
			return strings.Count(got, image) == 2 // it opens the image again
		})
		rig.Must(t, task.Cmd.Process.Kill())
		rig.WaitUntil(t, "the image isn't served", func() bool { return h.Do(t, "sh", "-c", show, image) == "" })
		if all := path + want + strings.ReplaceAll(files, "IMAGE", regexp.QuoteMeta(image)); !regexp.MustCompile("^" + all + "$").MatchString(got) {
			t.Errorf("user %d: %.400q, want %q", uid, got, all)
		}
	}
}

// TestSIFDevices: a program of a user's image opens the devices of its lease and no others, whatever the image asks for, and has no open file of berth's. It reaches
// neither the environment nor the directories of the user's processes outside.
func TestSIFDevices(t *testing.T) {
	h, image := sifHome(t, map[string]string{
		".singularity.d/env/90-environment.sh": "export NVIDIA_VISIBLE_DEVICES=all BERTH_GPUS=all BERTH_LEASE=aaaaaaaaaaaa APPTAINER_NV=1\n",
	})
	h.start(bob, h.Berth, "alloc", "1", "--", "sleep", "1000")
	lease := h.waitForLeases(1)[0].ID
	outside := h.start(alice, "sleep", "1000")
	show := openNodes + "; " + opening + fmt.Sprintf("; cd /proc/%d; ls root/ 2>&1; cat environ 2>&1", outside.Cmd.Process.Pid)
	denied := "ls: root/: Permission denied\ncat: can't open 'environ': Permission denied\n"
	h.wantSaid("without a lease", h.run(alice, h.apptainer("exec", image, "sh", "-c", show)...), rig.Said{Code: 1, Out: "\n????????\n" + denied})
	got := h.run(alice, h.apptainer("exec", "--nv", image, "sh", "-c", show)...)
	own, opened, _ := strings.Cut(got.Out, "\n")
	if len(own) != 1 || own == "0" || strings.ReplaceAll(opened, "?", "") != own+"\n"+denied {
		t.Errorf("with a lease: %+v; GPU 0 is leased", got)
	}
	words := append([]string{"env", "BERTH_LEASE=" + lease}, h.apptainer("exec", image, "true")...)
	if got := h.run(alice, words...); got.Code != 255 || !strings.Contains(got.Err, "is not part of lease") {
		t.Errorf("with another's lease: %+v", got)
	}
	h.wantSaid("a CDI name", h.run(alice, h.apptainer("exec", "--device", "nvidia.com/gpu=5", image, "sh", "-c", openNodes)...), rig.Said{Out: "5\n"})
	if got := h.run(alice, h.apptainer("exec", "--device", "nvidia.com/gpu=0", image, "true")...); got.Code != 75 {
		t.Errorf("the CDI name of a leased GPU: %+v", got)
	}
	const files = "exec ls /proc/self/fd" // without a pipe, which a shell has open for a moment
	for _, uid := range []int{alice, 0} {
		own := h.run(uid, "sh", "-c", files)
		h.wantSaid(fmt.Sprintf("open files of user %d", uid), h.run(uid, h.apptainer("exec", "--nv", image, "sh", "-c", files)...), own)
	}
}
