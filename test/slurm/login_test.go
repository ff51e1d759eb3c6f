package slurm

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/slurm/cluster"
)

// The user of the jobs.
const (
	user    = "ann"
	userID  = 4711
	homeDir = "/home/" + user
)

// login is a user's session on a cluster with berth, its device guard and its broker.
type login struct {
	*cluster.Cluster
	t *testing.T
}

// settle installs berth from the directory $0, and what images of the tests need: the interpreter's usual name, the directory that the
// driver's files are mounted on, and a program that prints which
// GPUs the kernel lets it open.
const settle = `chmod 666 /dev/fuse
for fd in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${fd%:*} /dev/${fd#*:}; done
ldconfig
cp "$0"/berth "$0"/berth-* /usr/local/bin
mkdir -p /etc/berth /data /usr/local/nvidia
echo of-the-data >/data/file
echo "runtime = 'runc'" >/etc/berth/config.toml
ln -s python3 /usr/bin/python
cat >/usr/bin/opens <<'END'
#!/bin/sh
for n in 0 1 2 3 4 5 6 7; do
	case $( (: </dev/nvidia$n) 2>&1) in
	*"No such device or address"*) printf $n;; # the kernel allows it, and the simulated node has no driver
	*"Operation not permitted"*|*"o such file"*) ;;
	*) printf '?';;
	esac
done
echo
END
chmod 755 /usr/bin/opens
berth discover --quiet
berth guard on
`

// buildImage makes pytorch.sif in the home directory: an image whose programs are the server's, by a bind mount of /usr, because Debian's MPI
// and Python needn't be copied.
const buildImage = `mkdir -p box/usr box/dev box/etc box/proc box/sys box/tmp box/home box/var/tmp box/data
for name in bin lib lib64 sbin; do ln -s usr/$name box/$name; done
touch box/etc/passwd box/etc/group box/etc/hosts box/etc/resolv.conf
apptainer --silent build --mksquashfs-args "-noI -noD -noF -noX" pytorch.sif box >build.log 2>&1 || { cat build.log; exit 1; }
rm -r box build.log`

// startCluster starts a cluster, and logs the user in.
func startCluster(t *testing.T, settings ...string) login {
	t.Helper()
	if os.Getenv(asked) != "1" {
		t.Skip("needs Slurm: make test-slurm")
	}
	c, err := cluster.Start(cluster.Options{
		Suite: *suite, Simnode: filepath.Join(shared.Dir, "simnode"), Share: shared.Dir, Settings: settings,
	})
	rig.Must(t, err)
	l := login{c, t}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(runToEnd(t, l.Command("sh", "-c", "tail -n 30 /var/log/broker /var/log/slurm/*.log /home/*/*.log; ps axfo pid,user,cgroup,args; berth leases")).Out)
		}
		rig.Must(t, c.Stop())
	})
	rig.Must(t, c.AddUser(user, userID))
	l.wantRoot("sh", "-ec", settle, shared.Dir)
	broker := l.Command("sh", "-c", "exec berth-broker >/var/log/broker 2>&1")
	rig.Must(t, broker.Start())
	go func() { _ = broker.Wait() }() // it is killed in the end
	rig.WaitUntil(t, "the broker listens", func() bool {
		_, err := os.Stat(l.Path("/run/berth/broker.sock"))
		return err == nil
	})
	l.wantOutput("sh", "-ec", buildImage)
	return l
}

// newCommand is a newCommand of the user's in the home directory. The image's programs are the server's.
func (l login) newCommand(words ...string) *exec.Cmd {
	return l.Command(cluster.AsUser(user, append([]string{"env", "APPTAINER_BIND=/usr"}, words...)...)...)
}

func runToEnd(t *testing.T, cmd *exec.Cmd) rig.Said {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%q: %v", cmd.Args, err)
	}
	return rig.Said{Code: cmd.ProcessState.ExitCode(), Out: out.String(), Err: errs.String()}
}

// runCommand runs a command of the user's to its end.
func (l login) runCommand(words ...string) rig.Said {
	l.t.Helper()
	return runToEnd(l.t, l.newCommand(words...))
}

// wantOutput runs a command of the user's that has to succeed, and returns its standard output.
func (l login) wantOutput(words ...string) string {
	l.t.Helper()
	said := l.runCommand(words...)
	if said.Code != 0 {
		l.t.Fatalf("%.80q: %+v", words, said)
	}
	return said.Out
}

// wantRoot is want for root.
func (l login) wantRoot(words ...string) string {
	l.t.Helper()
	said := runToEnd(l.t, l.Command(words...))
	if said.Code != 0 {
		l.t.Fatalf("%.80q: %+v", words, said)
	}
	return said.Out
}

// writeFile writes a file of the user's into the home directory.
func (l login) writeFile(name, text string) {
	l.t.Helper()
	path := l.Path(homeDir + "/" + name)
	rig.Must(l.t, os.WriteFile(path, []byte(text), 0o755))
	rig.Must(l.t, os.Chown(path, userID, userID))
}

// readFile returns the content of a file in the home directory, and "" if there is none.
func (l login) readFile(name string) string {
	data, _ := os.ReadFile(l.Path(homeDir + "/" + name))
	return string(data)
}

// removeFiles removes files of the home directory.
func (l login) removeFiles(names ...string) {
	l.t.Helper()
	l.wantOutput("sh", "-ec", "rm -f "+strings.Join(names, " "))
}

// listLeases lists the listLeases of the server.
func (l login) listLeases() []rig.Lease {
	l.t.Helper()
	var view struct{ Leases []rig.Lease }
	rig.Decode(l.t, l.wantRoot("berth", "leases", "--json"), &view)
	return view.Leases
}

// waitForNothing waits until a job has left nothing: no lease, no process of the user's, no cgroup with a process of the lease's, and no job in Slurm's queue.
func (l login) waitForNothing() {
	l.t.Helper()
	rig.WaitUntil(l.t, "the job has left nothing", func() bool {
		processes := runToEnd(l.t, l.Command("pgrep", "-u", user)).Out
		jobs := l.wantRoot("squeue", "--noheader")
		return len(l.listLeases()) == 0 && processes == "" && jobs == ""
	})
}
