package slurm

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// guideBlock returns the lines of the fenced block of a page that follows a sentence.
func guideBlock(t *testing.T, page, sentence string) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/" + page)
	rig.Must(t, err)
	_, rest, found := strings.Cut(string(data), sentence)
	_, rest, fenced := strings.Cut(rest, "```text\n")
	text, _, ended := strings.Cut(rest, "```")
	if !found || !fenced || !ended {
		t.Fatalf("%s has no block after %q", page, sentence)
	}
	return text
}

// wantInGuide fails if a page doesn't show a command line.
func wantInGuide(t *testing.T, page, line string) {
	t.Helper()
	data, err := os.ReadFile("../../docs/" + page)
	rig.Must(t, err)
	if !strings.Contains(strings.Join(strings.Fields(string(data)), " "), line) {
		t.Errorf("%s doesn't show %s", page, line)
	}
}

// runScript runs a runScript script to its end, and returns what the job has written to NAME-ID.out.
func (l login) runScript(name, script string) string {
	l.t.Helper()
	l.writeFile(name+".sh", script)
	id := strings.TrimSpace(l.wantOutput("sbatch", "--parsable", name+".sh"))
	l.waitForEnd(id, time.Minute)
	if state := l.wantOutput("scontrol", "show", "job", id); !strings.Contains(state, "JobState=COMPLETED") {
		l.t.Errorf("%s: %s", name, state)
	}
	return l.readFile(name + "-" + id + ".out")
}

// TestGuideOfRanks: docs/apptainer.md's lines of MPI and Slurm do what it says.
func TestGuideOfRanks(t *testing.T) {
	l := startCluster(t)
	l.writeFile("train.py", train)
	l.writeFile("train", "#!/usr/bin/python3\n"+train)
	l.wantRoot("sh", "-ec", "mkdir /opt/names && ln -s /usr/local/bin/berth /opt/names/apptainer")
	all := func(gpus string, said string) {
		t.Helper()
		if got := sortLines(said); !slices.Equal(got, listTrained(gpus)) {
			t.Errorf("with GPUs %s: %q", gpus, got)
		}
		l.waitForNothing()
	}
	if *suite != "forky" { // which has no PMIx
		all("0123", l.runScript("train", guideBlock(t, "apptainer.md", "A complete script for `sbatch`")))
	}

	mpirun := func(line string) string {
		t.Helper()
		wantInGuide(t, "apptainer.md", line)
		line = strings.ReplaceAll(strings.Replace(line, "…", "-n 4 berth apptainer exec --nv pytorch.sif ./train", 1), "mpirun", "mpirun --oversubscribe")
		return l.wantOutput("sh", "-c", "APPTAINER_BIND=/usr,/data "+line)
	}
	all("0123", mpirun("mpirun -n 4 berth apptainer exec --gpus 4 pytorch.sif ./train"))
	all("0123", mpirun("berth alloc 4 -- mpirun …"))
	each := sortLines(mpirun("mpirun -n 4 berth alloc 1 -- berth apptainer exec pytorch.sif ./train"))
	var gpus []string
	for _, line := range each {
		gpu, _, _ := strings.Cut(strings.SplitAfter(line, "GPUs ")[1], ",")
		gpus = append(gpus, gpu)
	}
	if slices.Sort(gpus); !slices.Equal(gpus, []string{"0", "1", "2", "3"}) {
		t.Errorf("a device for each rank: %q", each)
	}
	l.waitForNothing()

	wantInGuide(t, "apptainer.md", "berth alloc 4 -- srun …")
	if got := l.wantOutput("berth", "alloc", "4", "--", "srun", "opens"); got != "\n" {
		t.Errorf("a task of srun in berth alloc opens GPUs %q", got)
	}
	wantInGuide(t, "apptainer.md", "has `berth apptainer exec --gpus 2 …` in the place of `apptainer exec --nv …`")
	const head = "#!/bin/bash\n#SBATCH --output=%x-%j.out --job-name="
	if got := l.runScript("alone", head+"alone\nberth apptainer exec --gpus 2 pytorch.sif opens\nsrun -n 1 berth apptainer exec --gpus 3 pytorch.sif opens\n"); got != "01\n012\n" {
		t.Errorf("a script without several tasks: %q", got)
	}
	if got := l.runScript("named", head+"named --ntasks=2\nPATH=/opt/names:$PATH\nsrun apptainer exec --nv pytorch.sif opens\n"); got != "0\n0\n" {
		t.Errorf("with berth's name apptainer: %q", got)
	}
	l.waitForNothing()

	held := rig.StartProcess(t, l.newCommand("berth", "alloc", "6", "--", "sleep", "1000"))
	rig.WaitUntil(t, "six GPUs are leased", func() bool { return len(l.listLeases()) == 1 })
	if got := l.runCommand("srun", "-n", "4", "berth", "apptainer", "exec", "--gpus", "4", "pytorch.sif", "true"); got.Code != 75 {
		t.Errorf("busy GPUs: %+v", got)
	}
	l.wantOutput("pkill", "sleep")
	held.Wait(t)
	l.waitForNothing()
}

// launcherImage makes images for other launchers, whose python prints which GPUs it opens: the directory /images/pytorch, and pytorch.sif.
const launcherImage = `ln -s berth /usr/local/bin/nvidia-container-cli
box=/images/pytorch
mkdir -p $box/bin $box/dev $box/etc $box/proc $box/sys $box/tmp $box/home $box/usr/bin $box/var/tmp
cp /usr/bin/busybox $box/bin/busybox
for name in sh cat echo sleep; do ln -s busybox $box/bin/$name; done
touch $box/etc/passwd $box/etc/group $box/etc/hosts $box/etc/resolv.conf
cp /usr/bin/opens $box/usr/bin/python
chown -R "$0" /images`

// TestGuideOfLaunchers: docs/launchers.md's lines for Slurm give other launchers in a step the leased GPUs, and what ignores signals in them ends
// with the step.
func TestGuideOfLaunchers(t *testing.T) {
	l := startCluster(t)
	l.wantRoot("sh", "-ec", "mkdir /images; mount -t tmpfs -o mode=755 tmpfs /images; "+launcherImage, user)
	l.wantOutput("sh", "-ec", "rm pytorch.sif; apptainer --silent build pytorch.sif /images/pytorch")
	const sentence = "In a batch script of Slurm"
	script := strings.Replace(guideBlock(t, "launchers.md", sentence), "#!/bin/bash\n", "#!/bin/bash\n#SBATCH --output=%x-%j.out --job-name=nvccli\n", 1)
	script = strings.Replace(script, "export ", "unset APPTAINER_BIND\nexport ", 1) // the image has its own /usr
	if got := l.runScript("nvccli", script); !strings.HasSuffix(got, "01\n") {
		t.Errorf("apptainer: %q", got)
	}
	l.waitForNothing()
	const line = "srun berth alloc --wait=1h 2 -- ch-run /images/pytorch -- python train.py"
	wantInGuide(t, "launchers.md", line)
	if got := l.wantOutput("sh", "-c", line); got != "01\n" {
		t.Errorf("charliecloud: %q", got)
	}
	l.waitForNothing()

	job := rig.StartProcess(t, l.newCommand("srun", "-J", "deaf", "berth", "alloc", "2", "--", "sh", "-c", `trap "" TERM INT; echo >started; while :; do sleep 7777; done`))
	rig.WaitUntil(t, "the command runs", func() bool { return l.readFile("started") != "" })
	l.wantOutput("scancel", "--name=deaf")
	job.Wait(t)
	l.waitForNothing()
}
