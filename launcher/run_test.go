package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/image/oci"
)

func TestRun(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		for _, tt := range []struct {
			name   string
			line   string
			change func(*job)
			code   int
			stdout string
		}{
			{name: "output and success", line: "echo out; echo err >&2", stdout: "out\n"},
			{name: "exit code", line: "exit 7", code: 7},
			{name: "ended by a signal", line: "sh -c 'kill -9 $$'; exit $?", code: 137},
			{name: "no input unless asked for", line: "wc -c", stdout: "0\n"},
			{name: "first process", line: "echo $$", stdout: "1\n"},
			{name: "environment", line: "echo $A $B $HOME", change: func(j *job) { j.Env = []string{"A=1", "A=2", "B=x y"} }, stdout: "2 x y /root\n"},
			{name: "working directory is made", line: "pwd", change: func(j *job) { j.Dir = "/a/new/one" }, stdout: "/a/new/one\n"},
			{name: "user by name, with its groups", line: "id -u; id -g; id -G; echo $HOME", change: func(j *job) { j.User = "user" }, stdout: "1000\n1000\n1000 44\n/home/user\n"},
			{name: "user and group by number", line: "id -u; id -G", change: func(j *job) { j.User = "12:34" }, stdout: "12\n34\n"},
			{name: "name is the hostname", line: "hostname; cat /etc/hostname", change: func(j *job) { j.Name = "node7" }, stdout: "node7\nnode7\n"},
			{name: "no network but lo", line: "ls /sys/class/net", change: func(j *job) { j.Network = "none" }, stdout: "lo\n"},
			{name: "shared memory", line: "df -k /dev/shm | grep -o 2048", change: func(j *job) { j.Shm = 2 << 20 }, stdout: "2048\n2048\n"},
			{name: "the root can be written", line: "echo x >/file && cat /file", stdout: "x\n"},
			{name: "read-only", line: "touch /file 2>/dev/null; echo $?", change: func(j *job) { j.ReadOnly = true }, stdout: "1\n"},
			{name: "no device can be made", line: "mknod /d c 1 3 2>/dev/null; echo $?", stdout: "1\n"},
			{
				name:   "usual devices",
				line:   "for d in null zero full random urandom ptmx; do true <>/dev/$d && echo $d; done; true </dev/tty 2>&1 | grep -c permitted",
				stdout: "null\nzero\nfull\nrandom\nurandom\nptmx\n0\n", code: 1,
			},
			{name: "capabilities", line: "grep CapBnd /proc/self/status", stdout: "CapBnd:\t00000000a00405fb\n"},
			{name: "no new privileges", line: "grep NoNewPrivs /proc/self/status", stdout: "NoNewPrivs:\t1\n"},
			{name: "filtered system calls", line: "grep 'Seccomp:' /proc/self/status", stdout: "Seccomp:\t2\n"},
			{name: "kept on CPUs", line: "grep Cpus_allowed_list /proc/self/status", change: func(j *job) { j.CPUs = "0" }, stdout: "Cpus_allowed_list:\t0\n"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := rig{t: t, base: r.base}
				got := r.sh(tt.line, tt.change)
				if got.code != tt.code || got.stdout != tt.stdout {
					t.Errorf("code %d, output %q, errors %q, want %d, %q", got.code, got.stdout, got.stderr, tt.code, tt.stdout)
				}
			})
		}
	})
}

// A task that can't start fails with one line, and with the exit code that shells use.
func TestRunRefuses(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		layout := filepath.Join(t.TempDir(), "layout")
		if err := oci.Write(layout, oci.Image{Layers: []oci.Layer{{Tar: oci.Tar(busyboxFiles(t)...)}}}); err != nil {
			t.Fatal(err)
		}
		empty, dir := t.TempDir(), t.TempDir()
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		noProgram := filepath.Join(dir, "no-program")
		if err := os.WriteFile(noProgram, []byte("no-such-command\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		tmpfs := func(dst string) []specs.Mount {
			return []specs.Mount{{Destination: dst, Type: "tmpfs", Source: "tmpfs"}}
		}
		for _, tt := range []struct {
			name   string
			change func(*job)
			code   int
			says   string
		}{
			{"command isn't there", func(j *job) { j.Command = []string{"nope"} }, 127, `"nope" is nowhere in PATH`},
			{"path isn't there", func(j *job) { j.Command = []string{"/bin/nope"} }, 127, "/bin/nope"},
			{"command is a directory", func(j *job) { j.Command = []string{"/etc"} }, 126, "is a directory"},
			{"command isn't executable", func(j *job) { j.Command = []string{"/etc/../dev"} }, 126, "is a directory"},
			{"command is no program", func(j *job) { j.Command, j.Volumes = []string{"/x"}, []string{noProgram + ":/x"} }, 126, "/x: exec format error: it is neither a program"},
			{"no command at all", func(j *job) { j.Command = nil }, 127, "names no command"},
			{"no such image", func(j *job) { j.Image = "/no/such/image" }, 125, "/no/such/image is no image: there is no such file"},
			{"no image", func(j *job) { j.Image = empty }, 125, "is no image: neither an OCI layout nor a root file system"},
			{"user isn't there", func(j *job) { j.User = "nemo" }, 125, `user "nemo": not in the image's /etc/passwd`},
			{"group isn't there", func(j *job) { j.User = "0:nemo" }, 125, `group "nemo" is not in the image's /etc/group`},
			{"volume's source isn't there", func(j *job) { j.Volumes = []string{"/no/such:/x"} }, 125, "/no/such: no such file"},
			{"volume's option", func(j *job) { j.Volumes = []string{"/:/x:rx"} }, 125, `unknown option "rx"`},
			{"volume that is a file, on a directory", func(j *job) { j.Volumes = []string{file + ":/etc"} }, 125, file + " can't be mounted on /etc: it is a file"},
			{"volume that is a directory, on a file", func(j *job) { j.Volumes = []string{empty + ":/etc/hosts"} }, 125, empty + " can't be mounted on /etc/hosts: it is a directory"},
			{"volume on an other's file", func(j *job) { j.Volumes = []string{dir + ":/x", empty + ":/x/file"} }, 125, empty + " can't be mounted on /x/file: it is a directory"},
			{"memory on a file", func(j *job) { j.Mounts = tmpfs("/etc/passwd") }, 125, "tmpfs can't be mounted on /etc/passwd"},
			{"volume on the kernel's files", func(j *job) { j.Volumes = []string{empty + ":/proc"} }, 125, empty + " can't be mounted on /proc, where the task sees its own processes"},
			{"volume in the kernel's files", func(j *job) { j.Volumes = []string{empty + ":/sys/x"} }, 125, "/sys/x, which doesn't exist"},
			{"memory on the devices", func(j *job) { j.Mounts = tmpfs("/dev") }, 125, "tmpfs can't be mounted on /dev"},
			{"working directory that can't be created", func(j *job) { j.Dir = "/proc/x" }, 125, "working directory /proc/x doesn't exist"},
			{"name", func(j *job) { j.Name = "../x" }, 125, `name "../x"`},
			{"network", func(j *job) { j.Network = "bridge" }, 125, `network "bridge" is not known: there are host, where what a task listens on is reached`},
			{"network, typed wrongly", func(j *job) { j.Network = "hots" }, 125, `network "hots" is not known (did you mean host?)`},
			{"capability, typed wrongly", func(j *job) { j.CapAdd = []string{"sys_ptrcae"} }, 125, "no such capability (did you mean SYS_PTRACE?)"},
			{"namespace, typed wrongly", func(j *job) { j.IPC = "privat" }, 125, `--ipc "privat" is not known (did you mean private?)`},
			{"environment", func(j *job) { j.Env = []string{"NOVALUE"} }, 125, `"NOVALUE" is not NAME=VALUE`},
			{"layouts aren't written to", func(j *job) { j.Image, j.ReadWrite = layout, true }, 125, "has layers, which are shared and never change"},
			{"read-only and writable", func(j *job) { j.ReadOnly, j.ReadWrite = true, true }, 125, "can't be both"},
			{"input is no terminal", func(j *job) { j.Terminal, j.Interactive = true, true }, 125, "standard input is no terminal: leave out -t"},
			{"CPUs that aren't there", func(j *job) { j.CPUs = "60000" }, 125, "none of the CPUs 60000"},
			{"no runtime", func(j *job) { j.Runtime = "/no/runtime" }, 125, "/no/runtime is not an executable file"},
			{"devices are busy", func(j *job) { j.Devices = "busy" }, 75, "2 of 2 in use"},
			{"devices can't be prepared", func(j *job) { j.Devices = "unprepared" }, 125, "no driver files"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := rig{t: t, base: r.base}
				got := r.sh("echo ran", tt.change)
				lines := strings.Count(got.stderr, "\n")
				if got.code != tt.code || got.stdout != "" || lines != 1 || !strings.Contains(got.stderr, tt.says) {
					t.Errorf("code %d, output %q, errors %q, want %d and one line with %q", got.code, got.stdout, got.stderr, tt.code, tt.says)
				}
				r.expectNothingLeft()
			})
		}
	})
}

// A program that no check finds wrong beforehand still gets the right code.
func TestRunInterpreterMissing(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		script := filepath.Join(r.base.Image, "script")
		if err := os.WriteFile(script, []byte("#!/no/such/shell\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		got := r.run(r.job(func(j *job) { j.Command = []string{"/script"} }))
		if got.code != 127 || !strings.Contains(got.stderr, "berth: command not found: /script needs /no/such/shell, which isn't in the image") {
			t.Errorf("%+v", got)
		}
	})
}

// The same for what comes with a volume or with the devices: one line, and the
// code of a shell, whichever runtime it is.
func TestRunInterpreterOfMountedProgram(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		dir := t.TempDir()
		script := filepath.Join(dir, "script")
		if err := os.WriteFile(script, []byte("#!/no/such/shell\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name, command string
			change        func(*job)
		}{
			{"file", "/x", func(j *job) { j.Volumes = []string{script + ":/x"} }},
			{"directory", "/opt/tools/script", func(j *job) { j.Volumes = []string{dir + ":/opt/tools"} }},
			{"devices", "/usr/bin/smi", func(j *job) { j.Devices, j.Programs = "free", map[string]string{"/usr/bin/smi": script} }},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := rig{t: t, base: r.base}
				got := r.run(r.job(func(j *job) { j.Command = []string{tt.command}; tt.change(j) }))
				want := result{127, "", "berth: command not found: " + tt.command + " needs /no/such/shell, which isn't in the image\n"}
				if got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
				r.expectNothingLeft()
			})
		}
	})
}

func TestRunLayout(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		layout := filepath.Join(t.TempDir(), "layout")
		err := oci.Write(layout, oci.Image{
			Tag: "one",
			Config: ispec.ImageConfig{
				Env: []string{"A=image", "B=image"}, Entrypoint: []string{"sh", "-c"},
				Cmd: []string{"echo $A $B $C; pwd; id -u; ls -l /lower /gone 2>/dev/null; cat /etc/over"}, WorkingDir: "/home/user", User: "user",
			},
			Layers: []oci.Layer{
				{Tar: oci.Tar(append(busyboxFiles(t), oci.File{Name: "gone"}, oci.File{Name: "etc/over", Body: "lower\n"})...), Compression: "gzip"},
				{Tar: oci.Tar(oci.File{Name: ".wh.gone"}, oci.File{Name: "etc/over", Body: "upper\n"}), Compression: "zstd"},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := r.run(r.job(func(j *job) { j.Image, j.Env = layout+":one", []string{"B=task", "C=task"} }))
		want := result{stdout: "image task task\n/home/user\n1000\nupper\n"}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		got = r.run(r.job(func(j *job) { j.Image, j.Command = "oci:"+layout, []string{"echo $0 $1", "x", "y"} }))
		if got.stdout != "x y\n" {
			t.Errorf("entrypoint with a command: %+v", got)
		}
	})
}

func TestRunReadWrite(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		file := filepath.Join(r.base.Image, "file")
		if got := r.sh("echo x >/file", nil); got.code != 0 || fileExists(file) {
			t.Errorf("a throw-away write: %+v, stayed: %v", got, fileExists(file))
		}
		if got := r.sh("echo x >/file", func(j *job) { j.ReadWrite = true }); got.code != 0 || !fileExists(file) {
			t.Errorf("a write to the image: %+v, stayed: %v", got, fileExists(file))
		}
	})
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestRunVolumes(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\necho tool\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		got := r.sh("echo x >/new/dir/file; touch /ro/file 2>/dev/null; echo $?", func(j *job) {
			j.Volumes = []string{dir + ":/new/dir", dir + ":/ro:ro"}
		})
		if got.stdout != "1\n" || !fileExists(filepath.Join(dir, "file")) {
			t.Errorf("%+v", got)
		}
		// A command that comes by a volume isn't in the image, and runs.
		got = r.run(r.job(func(j *job) { j.Volumes, j.Command = []string{dir + ":/tools"}, []string{"/tools/tool"} }))
		if got.stdout != "tool\n" {
			t.Errorf("%+v", got)
		}
	})
}

// A device node in an image can't be opened, and no link in an image leads outside the root.
func TestRunHostileImage(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		img := r.base.Image
		node := filepath.Join(img, "node")
		if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
			t.Fatal(err)
		}
		// Without a driver an allowed node would say "No such device".
		got := r.sh("cat /node", nil)
		if !strings.Contains(got.stderr, "Operation not permitted") && !strings.Contains(got.stderr, "Permission denied") {
			t.Errorf("node in the image: %+v", got)
		}
		secret := filepath.Join(t.TempDir(), "passwd")
		if err := os.WriteFile(secret, []byte("secret:x:4242:4242::/:/bin/sh\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		passwd := filepath.Join(img, "etc/passwd")
		if err := os.Remove(passwd); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../../../../.."+secret, passwd); err != nil {
			t.Fatal(err)
		}
		if got := r.sh("id -u", func(j *job) { j.User = "secret" }); got.code != 125 {
			t.Errorf("passwd that leads outside: %+v", got)
		}
		outside := t.TempDir()
		if err := os.Symlink(outside, filepath.Join(img, "way")); err != nil {
			t.Fatal(err)
		}
		got = r.sh("pwd", func(j *job) { j.Dir = "/way/new" })
		if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
			t.Errorf("working directory made outside: %v, %v, %+v", left, err, got)
		}
	})
}

func TestRunLimits(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		limit := func(j *job) { j.Memory, j.CPUQuota = 64<<20, 1.5 }
		got := r.sh("cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us || cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max", limit)
		switch {
		case got.code == 125: // where the controllers belong to the other version
			if !strings.Contains(got.stderr, `no cgroup controller "memory"`) {
				t.Errorf("%+v", got)
			}
		case !strings.HasPrefix(got.stdout, "67108864\n150000"):
			t.Errorf("%+v", got)
		}
	})
}

func TestRunDevices(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		got := r.sh("echo $PREPARED; grep Cpus_allowed_list /proc/self/status", func(j *job) {
			j.Devices, j.Name, j.CPUsNear = "free", "trainer", "0,60000"
		})
		if want := "yes\nCpus_allowed_list:\t0\n"; got.stdout != want {
			t.Errorf("%+v, want %q", got, want)
		}
		calls, err := os.ReadFile(r.base.Record)
		if want := "acquire run trainer\nprepare\nrelease\n"; string(calls) != want {
			t.Errorf("calls %q, %v, want %q", calls, err, want)
		}
	})
}

// Mistakes in options are found before devices are acquired, not after a wait for them.
func TestRunChecksBeforeAcquire(t *testing.T) {
	r := newAnyRig(t)
	got := r.run(r.job(func(j *job) { j.Devices, j.Command = "free", []string{"nope"} }))
	if _, err := os.Lstat(r.base.Record); got.code != 127 || err == nil {
		t.Errorf("%+v, and the devices were asked for: %v", got, err == nil)
	}
}

func TestRunNeedsRealRoot(t *testing.T) {
	r := newAnyRig(t)
	cmd := r.command(r.job(func(j *job) { j.Cgroups = "" }))
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
	cmd.SysProcAttr.Unshareflags = 0
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	out, err := cmd.CombinedOutput()
	if code := exitStatus(t, err); code != 125 || string(out) != "berth: not root: this is a user namespace, whose root can't set device rules\n" {
		t.Errorf("code %d, %q", code, out)
	}
}
