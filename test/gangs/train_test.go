package gangs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// trainWords is what follows the options of a run that trains the small model.
func trainWords() []string {
	return []string{"-v", scripts + ":/mnt:ro", torch, "python3", "/mnt/ddp.py"}
}

func runWords(before []string, after ...string) []string {
	return append(append([]string{"run"}, before...), after...)
}

// losses are what the ranks of one training say in the end, by rank.
func losses(t *testing.T, said string, size int) string {
	t.Helper()
	found := regexp.MustCompile(`rank (\d+) of (\d+): loss ([0-9.]+)`).FindAllStringSubmatch(said, -1)
	ranks := map[string]bool{}
	for _, f := range found {
		if f[2] != fmt.Sprint(size) || f[3] != found[0][3] {
			t.Fatalf("the ranks don't agree:\n%s", said)
		}
		ranks[f[1]] = true
	}
	if len(ranks) != size {
		t.Fatalf("%d of %d ranks have trained:\n%s", len(ranks), size, said)
	}
	return found[0][3]
}

// TestTraining: four ranks learn what one alone does, whatever network connects them and
// whichever GPUs they see.
func TestTraining(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		alone := losses(t, n.mustRun(t, runWords([]string{"-n", "1", "--gpus-per-rank", "1"}, trainWords()...)...), 1)
		for _, options := range [][]string{
			{},
			{"--bind-gpus", "rank"},
			{"--network", "none"},
			{"--network", "host"},
		} {
			t.Run(strings.Join(options, " "), func(t *testing.T) {
				words := append([]string{"-n", "4", "--gpus-per-rank", "1"}, options...)
				if got := losses(t, n.mustRun(t, runWords(words, trainWords()...)...), 4); got != alone {
					t.Errorf("four ranks come to a loss of %s, one to %s", got, alone)
				}
				n.expectNothingLeft(t)
			})
		}
	})
}

// TestTwoGangs: both have port 29500, at the same time.
func TestTwoGangs(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		dir := makeMeetingDir(t)
		const script = `touch /meet/$BERTH_GANG.$RANK
			until [ $(ls /meet | wc -l) = 4 ]; do sleep 0.05; done
			echo port $MASTER_PORT; exec python3 /mnt/ddp.py`
		var gangs []*running
		for _, name := range []string{"left", "right"} {
			gangs = append(gangs, n.startRun(t, "-n", "2", "--gpus-per-rank", "1", "--name", name,
				"-v", dir+":/meet", "-v", scripts+":/mnt:ro", torch, "sh", "-c", script))
		}
		var found []string
		for _, g := range gangs {
			if code := g.Wait(t); code != 0 {
				t.Fatalf("exit code %d\n%s", code, g.readOutput(t))
			}
			said := g.readOutput(t)
			if strings.Count(said, "port 29500") != 2 {
				t.Errorf("the ranks have other ports:\n%s", said)
			}
			found = append(found, losses(t, said, 2))
		}
		if found[0] != found[1] {
			t.Errorf("the gangs come to losses of %v", found)
		}
		n.expectNothingLeft(t)
	})
}

// TestTorchrun: a launcher that starts its ranks itself has one container with four GPUs.
func TestTorchrun(t *testing.T) {
	n := sharedServer(t, "dgx-h100", "v2")
	// Its own defaults for output fail under Python 3.11, for which it wasn't made.
	said := n.mustRun(t, runWords([]string{"--gpus", "4", "-e", "OMP_NUM_THREADS=1", "-v", scripts + ":/mnt:ro"}, torch,
		"python3", "-m", "torch.distributed.run", "--standalone", "-r", "1", "-t", "1", "--nproc_per_node", "4", "/mnt/ddp.py")...)
	inside := losses(t, said, 4)
	if alone := losses(t, n.mustRun(t, runWords([]string{"-n", "1"}, trainWords()...)...), 1); inside != alone {
		t.Errorf("four ranks of torchrun come to a loss of %s, one to %s", inside, alone)
	}
}

// TestMPI: mpirun and its ranks in one container with four GPUs.
func TestMPI(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		expectAgreement(t, n.mustRun(t, runWords([]string{"--gpus", "4", "--network", "none"}, torch,
			"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", "allreduce")...), 4)
	})
}

func expectAgreement(t *testing.T, said string, size int) {
	t.Helper()
	for rank := range size {
		if want := fmt.Sprintf("rank %d of %d: the sums agree", rank, size); !strings.Contains(said, want) {
			t.Errorf("it doesn't say %q:\n%s", want, said)
		}
	}
}

// TestOuterMPI: each rank of the host's mpirun is a container of its own.
func TestOuterMPI(t *testing.T) {
	n := sharedServer(t, "dgx-h100", "v2")
	cmd := n.Command("env", "OPAL_PREFIX="+torch+"/usr", "PMIX_INSTALL_PREFIX="+torch+"/usr",
		"LD_LIBRARY_PATH="+torch+"/usr/lib/x86_64-linux-gnu:"+torch+"/usr/lib/x86_64-linux-gnu/openmpi/lib", "PATH="+os.Getenv("PATH"),
		torch+"/usr/bin/orterun", "--allow-run-as-root", "--oversubscribe", "-n", "4",
		n.Berth, "run", "--mpi", "--gpus", "1", torch, "allreduce")
	said := n.Run(t, cmd)
	if said.Code != 0 {
		t.Fatalf("exit code %d\n%s%s", said.Code, said.Out, said.Err)
	}
	expectAgreement(t, said.Out, 4)
	n.expectNothingLeft(t)
}

// TestOuterApptainer: the ranks of a user's mpirun are commands of berth apptainer, which share one lease.
func TestOuterApptainer(t *testing.T) {
	if os.Getenv(asked) != "1" {
		t.Skip("make test-gangs runs this, with a root file system of PyTorch and Open MPI")
	}
	server, err := shared.StartRooted("dgx-h100")
	rig.Must(t, err)
	rig.StartProcess(t, server.Command(filepath.Dir(server.Berth)+"/berth-broker"))
	rig.WaitUntil(t, "the broker listens", func() bool {
		_, err := os.Stat(server.Path("/run/berth/broker.sock"))
		return err == nil
	})
	rig.Must(t, os.Chmod(shared.Dir, 0o755)) // with the programs
	home := t.TempDir()
	for _, dir := range []string{filepath.Dir(home), home} {
		rig.Must(t, os.Chown(dir, 4711, 4711))
	}
	lib := torch + "/usr/lib/x86_64-linux-gnu"
	cmd := server.Command("setpriv", "--reuid", "4711", "--regid", "4711", "--clear-groups",
		"env", "-C", home, "HOME="+home, "OPAL_PREFIX="+torch+"/usr", "PMIX_INSTALL_PREFIX="+torch+"/usr",
		"LD_LIBRARY_PATH="+lib+":"+lib+"/openmpi/lib", "PATH="+os.Getenv("PATH"), torch+"/usr/bin/orterun", "--oversubscribe", "-n", "4",
		server.Berth, "apptainer", "exec", "--gpus", "2", "-B", torch, "oci:"+busybox, "sh", "-c",
		`echo $(ls /dev | grep 'nvidia[0-9]'); exec "$1"/ld-linux-x86-64.so.2 --library-path "$1":"$1"/openmpi/lib "$0"/usr/local/bin/allreduce`, torch, lib)
	said := server.Run(t, cmd)
	if said.Code != 0 {
		t.Fatalf("exit code %d\n%s%s", said.Code, said.Out, said.Err)
	}
	expectAgreement(t, said.Out, 4)
	devices := map[string]int{}
	for line := range strings.Lines(said.Out) {
		if strings.Contains(line, "nvidia") {
			devices[strings.TrimSpace(line)]++
		}
	}
	if len(devices) != 1 {
		t.Errorf("the ranks have %v", devices)
	}
	for words, count := range devices {
		if count != 4 || strings.Count(words, "nvidia") != 2 {
			t.Errorf("%d ranks have %s", count, words)
		}
	}
}

// TestOuterDescriptor: an older launcher speaks to its ranks by a descriptor, and that one
// alone comes in.
func TestOuterDescriptor(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		const talk = `import os, socket
s = socket.socket(fileno=os.dup(int(os.environ["PMI_FD"])))
s.sendall(b"cmd=init\n")
print(s.recv(99).decode().strip(), sorted(os.listdir("/proc/self/fd"))[:4], os.environ["PMI_RANK"], os.environ.get("HYDI_CONTROL_FD"))`
		const launch = `import os, socket, subprocess, sys
a, b = socket.socketpair()
for fd in (b.fileno(), os.dup(0)):
    os.set_inheritable(fd, True)
os.dup2(b.fileno(), 9)
p = subprocess.Popen(sys.argv[1:], close_fds=False, env=dict(os.environ, PMI_FD="9", PMI_RANK="1", HYDI_CONTROL_FD="8"))
b.close()
assert a.recv(99) == b"cmd=init\n"
a.sendall(b"cmd=response_to_init\n")
sys.exit(p.wait())`
		said := n.Run(t, n.Command("python3", "-c", launch, n.Berth, "run", "--mpi", torch, "python3", "-c", talk))
		if want := "cmd=response_to_init ['0', '1', '2', '3'] 1 None\n"; said.Code != 0 || said.Out != want {
			t.Errorf("%+v, want %q", said, want)
		}
	})
}

// TestOuterRefused: what can't be a rank of an outer launcher's is told so.
func TestOuterRefused(t *testing.T) {
	n := sharedServer(t, "dgx-h100", "v2")
	for _, tc := range []struct {
		words []string
		want  string
	}{
		{[]string{"run", "--mpi", busybox, "true"}, "no MPI launcher has started this"},
		{[]string{"run", "--mpi", "-d", busybox, "true"}, "can't be detached"},
		{[]string{"run", "--mpi", "--network", "none", busybox, "true"}, "the host's network"},
		{[]string{"run", "--mpi", "-n", "2", busybox, "true"}, "the ranks of a gang don't need it"},
	} {
		if said := n.RunBerth(t, tc.words...); said.Code != 125 || !strings.Contains(said.Err, "--mpi") || !strings.Contains(said.Err, tc.want) {
			t.Errorf("berth %q: %+v, want %q", tc.words, said, tc.want)
		}
	}
	n.expectNothingLeft(t)
}

// TestContracts: from inside a rank, each framework's own way of reading its environment
// leads to the others.
func TestContracts(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		for _, network := range []string{"private", "none", "host"} {
			t.Run(network, func(t *testing.T) {
				// Variables of an outer launcher must not reach the ranks.
				cmd := n.Command("env", "SLURM_PROCID=3", "PMI_RANK=1", "PMIX_RANK=1", "OMPI_COMM_WORLD_RANK=1", "TORCHELASTIC_RUN_ID=x", "RANK=9",
					n.Berth, "run", "-n", "3", "--gpus-per-rank", "1", "--network", network,
					"-v", scripts+":/mnt:ro", torch, "python3", "/mnt/contracts.py")
				said := n.Run(t, cmd)
				if said.Code != 0 || strings.Count(said.Out, "the contracts hold") != 3 {
					t.Errorf("exit code %d\n%s%s", said.Code, said.Out, said.Err)
				}
				horovod := "horovod: 2 of 3"
				if network == "host" { // where everybody could reach its store
					horovod = "rank-2 | horovod: not served"
				}
				if !strings.Contains(said.Out, horovod) {
					t.Errorf("it doesn't say %q:\n%s", horovod, said.Out)
				}
				n.expectNothingLeft(t)
			})
		}
	})
}

// TestGPUs: what each rank sees, by default and alone.
func TestGPUs(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		for _, tc := range []struct {
			name  string
			words []string
			want  string // of each rank
		}{
			{"all of the gang's", nil, "4"},
			{"its own", []string{"--bind-gpus", "rank"}, "2"},
		} {
			t.Run(tc.name, func(t *testing.T) {
				words := append([]string{"-n", "2", "--gpus-per-rank", "2"}, tc.words...)
				said := n.mustRun(t, runWords(words, busybox, "sh", "-c", `ls -d /dev/nvidia[0-9]* | wc -l`)...)
				for _, rank := range []string{"rank-0", "rank-1"} {
					if got := rankLines(said, rank); len(got) != 1 || got[0] != tc.want {
						t.Errorf("%s sees %q, want %s:\n%s", rank, got, tc.want, said)
					}
				}
			})
		}
		seen := map[string]bool{}
		said := n.mustRun(t, runWords([]string{"-n", "4", "--gpus-per-rank", "2", "--bind-gpus", "rank"}, busybox, "sh", "-c", `ls -d /dev/nvidia[0-9]*`)...)
		for _, word := range strings.Fields(said) {
			if strings.HasPrefix(word, "/dev/nvidia") {
				seen[word] = true
			}
		}
		if len(seen) != 8 {
			t.Errorf("four ranks with two GPUs of their own have %d:\n%s", len(seen), said)
		}
	})
}
