package main

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/run"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/verbtest"
)

// dockers are the flags of docker run 29, but for those of Windows alone.
const dockers = `add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns
cidfile cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems detach detach-keys
device device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops disable-content-trust
dns dns-option dns-search domainname entrypoint env env-file expose gpus group-add health-cmd health-interval
health-retries health-start-interval health-start-period health-timeout hostname init interactive ip ip6 ipc isolation
kernel-memory label label-file link link-local-ip log-driver log-opt mac-address memory memory-reservation memory-swap
memory-swappiness mount name network network-alias no-healthcheck oom-kill-disable oom-score-adj pid pids-limit
platform privileged publish publish-all pull quiet read-only restart rm runtime security-opt shm-size sig-proxy
stop-signal stop-timeout storage-opt sysctl tmpfs tty ulimit use-api-socket user userns uts volume volume-driver
volumes-from workdir`

// runNames are the names of run's flags.
func runNames() map[string]bool {
	names := map[string]bool{}
	for _, f := range run.Command().Flags {
		for _, name := range f.Names() {
			names[name] = true
		}
	}
	return names
}

// TestDockerRunFlags: berth run has or explains each flag of docker run, and never both.
func TestDockerRunFlags(t *testing.T) {
	have, page := runNames(), flagsPage(t)
	for _, name := range strings.Fields(dockers) {
		_, explained := othertools.DockerFlags()["run"][name]
		if have[name] == explained {
			t.Errorf("--%s: there: %v, explained: %v", name, have[name], explained)
		}
		if !strings.Contains(page, "`--"+name) {
			t.Errorf("docs/reference/flags.md doesn't speak of --%s", name)
		}
	}
	for name := range have {
		if len(name) > 1 && !strings.Contains(page, "`--"+name) {
			t.Errorf("docs/reference/flags.md doesn't speak of --%s", name)
		}
	}
	for name := range othertools.DockerFlags()["run"] {
		if have[name] {
			t.Errorf("--%s is there, and explained as if it weren't", name)
		}
	}
}

// dockerFlagsOfVerbs returns the flags of docker's verbs other than run, with their short names.
func dockerFlagsOfVerbs() map[string]string {
	return map[string]string{
		"ps": "all a filter f format last n latest l no-trunc quiet q size s", "images": "all a digests filter f format no-trunc quiet q tree",
		"inspect": "format f size s type", "rm": "force f link l volumes v", "stop": "signal s timeout t time", "kill": "signal s",
		"logs": "details follow f since tail n timestamps t until", "attach": "detach-keys no-stdin sig-proxy",
		"exec": "detach d detach-keys env e env-file interactive i privileged tty t user u workdir w", "stats": "all a format no-stream no-trunc",
		"pull": "all-tags a disable-content-trust platform quiet q", "rmi": "force f no-prune platform", "info": "format f", "version": "format f", "prune": "all a filter force f volumes",
	}
}

// TestDockerFlagsOfOtherVerbs: berth has or explains docker's flags of other verbs, and never both.
func TestDockerFlagsOfOtherVerbs(t *testing.T) {
	app := newApp()
	for verb, flags := range dockerFlagsOfVerbs() {
		for _, name := range strings.Fields(flags) {
			flag := strings.Repeat("-", min(2, len(name))) + name
			if have, why := findFlag(app.Command(verb).Flags, name) != nil, othertools.ExplainFlag(verb, flag); have == (why != "") {
				t.Errorf("%s %s: there: %v, explained: %q", verb, flag, have, why)
			}
		}
	}
	for verb, flags := range othertools.DockerFlags() {
		for name := range flags {
			if verb != "run" && !slices.Contains(strings.Fields(dockerFlagsOfVerbs()[verb]), name) {
				t.Errorf("%s --%s isn't docker's", verb, name)
			}
		}
	}
}

// TestExplainedFlagsAreUsageErrors: an explained flag is refused in one line with advice, and with the
// exit code of a usage error.
func TestExplainedFlagsAreUsageErrors(t *testing.T) {
	for _, tt := range []struct {
		typed, line string
		code        int
	}{
		{"rm -fa", "there is no -a: berth ps -aq lists all: berth rm $(berth ps -aq)", verb.ExitUsage},
		{"logs -l", "there is no -l: berth ps -lq is the latest", verb.ExitUsage},
		{"pull --tls-verify=false image", "there is no --tls-verify: plain HTTP", verb.ExitUsage},
		{"-H tcp://host:2375 ps", "there is no -H: berth has no daemon", verb.ExitUsage},
		{"--namespace k8s.io ps", "there is no --namespace: tasks are in one list", verb.ExitUsage},
		{"--debug ps", "there is no --debug: ", verb.ExitUsage},
		{"gpus -L", "there is no -L: berth gpus --no-trunc", verb.ExitUsage},
		{"gpus -l 1", "there is no -l: berth gpus --watch=1", verb.ExitUsage},
		{"topo -m", "-m isn't needed: berth topo prints the matrix", verb.ExitUsage},
		{"pull --name a.sif docker://b", "there is no --name: berth pull writes no SIF file", verb.ExitUsage},
		{"inspect --runscript a.sif", "there is no --runscript: berth images --json", verb.ExitUsage},
		{"exec --gpus 1 a b", "there is no --gpus: a task has what berth run gave it", verb.ExitBerth},
		{"ps -as", "there is no --size: ", verb.ExitUsage},
		{"stop a -s INT", "there is no --signal: berth run --stop-signal", verb.ExitUsage},
		{"exec --detach-keys a b c", "there is no --detach-keys: berth exec -d", verb.ExitBerth},
		{"kill -9 a", "there is no flag -9: berth kill -s 9 sends that signal", verb.ExitUsage},
		{"kill -KILL a", "there is no flag --KILL: berth kill -s KILL sends that signal", verb.ExitUsage},
		{"stats -a", "there is no --all: ", verb.ExitUsage},
	} {
		t.Run(tt.typed, func(t *testing.T) {
			app := newApp()
			err := app.Run(orderArguments(app, append([]string{"berth"}, strings.Fields(tt.typed)...)))
			if code, line := verb.ExitStatus(err); code != tt.code || !strings.HasPrefix(line, tt.line) {
				t.Errorf("%d, %s", code, line)
			}
		})
	}
}

// TestApptainerAndSlurmFlags: flags of Apptainer and Slurm are explained unless berth has them.
func TestApptainerAndSlurmFlags(t *testing.T) {
	app := newApp()
	for verb, all := range map[string][]map[string]string{"run": othertools.Flags("run"), "alloc": othertools.Flags("alloc")} {
		for _, flags := range all {
			for name := range flags {
				if findFlag(app.Command(verb).Flags, name) != nil {
					t.Errorf("berth %s has --%s, and says that it hasn't", verb, name)
				}
			}
		}
	}
	for typed, want := range map[string]string{
		"run --nv image":               "there is no --nv: --gpus 1 gives",
		"run -B /data image":           "there is no -B: -v SRC:DST",
		"run --bind /data image":       "there is no --bind: -v SRC:DST",
		"run --gres=gpu:2 image":       "there is no --gres: --gpus 2",
		"run --time 1:00:00 image":     "there is no --time: --timeout 2h",
		"run -t 1:00:00 image":         "1:00:00 is no image: -t gives the task a terminal, and --timeout 2h",
		"run -p gpu image":             `--publish "gpu" is no port, such as 8888:8888; --partition (Slurm's -p) isn't needed`,
		"run -J train image":           "there is no -J: --name NAME",
		"run --containall image":       "--containall isn't needed: a task sees nothing",
		"run -e image.sif env":         "--env image.sif: a variable is NAME=VALUE",
		"run -c docker://image env":    `--cpu-shares "docker://image" is not a number; --contain`,
		"run --net --network none a":   "--network (or --net) --network: the value is a network",
		"exec --nv image.sif nvcc":     "there is no --nv: berth apptainer exec takes Apptainer's flags; with berth run: --gpus 1 gives",
		"alloc -G 2 sleep 1":           "there is no -G: the request is the first word",
		"alloc -t 1:00:00 2 sleep 1":   "there is no -t: timeout 2h before the command",
		"run -u docker://image id":     "--user docker://image: -u USER runs as another user; --userns (Apptainer's -u) isn't needed",
		"run -w image.sif id":          "--workdir image.sif: -w DIR is the directory",
		"run -p library://image id":    "--publish library://image: -p PORT publishes a port; --pid",
		"run --mpi=pmix image":         "--mpi takes no value: srun --mpi=pmix or mpirun starts the ranks",
		"run --replace --name a image": "there is no --replace: berth rm -f NAME",
		"run --tls-verify=false image": "there is no --tls-verify: plain HTTP",
		"run --export=ALL image":       "there is no --export: -e NAME passes a variable on",
		"run -f image":                 "-f isn't needed: a task runs as the image's user",
		"run -l docker://image id":     "--label docker://image: -l NAME=VALUE labels the task",
		"run -t 60 image id":           "60 is no image: -t gives the task a terminal, and --timeout 2h",
		"run -d afterok:4711 image":    "afterok:4711 is no image: berth wait TASK && berth run -d",
		"run -w node1 image":           "--workdir node1: the directory is an absolute path",
		"alloc -it 1 bash":             "-i isn't needed: the command runs in this terminal",
		"alloc --rm 1 bash":            "--rm isn't needed: the command is one of the host",
		"alloc --no-shell 1":           "there is no --no-shell: & behind the command",
		"alloc -C h100 1 bash":         "there is no -C: the request is the first word",
		"alloc sh train.sh":            "sh is a command, and the request is missing before it: berth alloc 1 -- sh train.sh",
		"run -x node2 image":           "-x isn't needed: berth is for this server alone",
		"run --runtime nvidia image":   "--runtime nvidia gives no GPUs: --gpus all asks for all",
		"alloc --gres=gpu:2 sleep 1":   "there is no --gres: the request is the first word",
		"alloc --time=1:00:00 1 sleep": "there is no --time: timeout 2h before the command",
	} {
		err := newApp().Run(orderArguments(app, append([]string{"berth"}, strings.Fields(typed)...)))
		if code, line := verb.ExitStatus(err); code != verb.ExitBerth || !strings.HasPrefix(line, want) {
			t.Errorf("%s: %d, %s", typed, code, line)
		}
	}
}

func TestExplainedFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"-P":     "there is no --publish-all: a task shares the host's network",
		"-dP":    "there is no --publish-all: ",
		"-itP":   "there is no --publish-all: ",
		"--link": "there is no --link: ",
	} {
		app := newApp()
		app.Writer, app.ErrWriter = os.Stderr, os.Stderr
		app.ExitErrHandler = func(*cli.Context, error) {}
		err := app.Run(orderArguments(app, []string{"berth", "run", flag, "80:80", "IMAGE"}))
		code, line := verb.ExitStatus(err)
		if code != verb.ExitBerth || !strings.HasPrefix(line, want) {
			t.Errorf("%s: %d, %s", flag, code, line)
		}
	}
	if got := othertools.ExplainFlag("run", "--gpu"); got != "" {
		t.Errorf("an unknown flag is explained: %s", got)
	}
}

func flagsPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const (
	absentBegins = "<!-- make docs writes these tables -->\n"
	absentEnds   = "<!-- end -->\n"
)

// TestGeneratedTables: the tables of docs/reference/flags.md equal those of package othertools.
func TestGeneratedTables(t *testing.T) {
	page := flagsPage(t)
	before, rest, ok1 := strings.Cut(page, absentBegins)
	_, after, ok2 := strings.Cut(rest, absentEnds)
	if !ok1 || !ok2 {
		t.Fatal("docs/reference/flags.md has no place for the tables")
	}
	text := "| docker's flag of run | what serves instead |\n|---|---|\n" + rowsOf("", othertools.DockerFlags()["run"])
	text += "\n| of another verb | what serves instead |\n|---|---|\n"
	for _, verb := range slices.Sorted(maps.Keys(othertools.DockerFlags())) {
		if verb != "run" {
			text += rowsOf(verb+" ", othertools.DockerFlags()[verb])
		}
	}
	verbtest.CompareGolden(t, "../../docs/reference/flags.md", before+absentBegins+text+absentEnds+after)
}

// rowsOf is a table's: flags that the same serves for share one.
func rowsOf(verb string, absent map[string]string) string {
	flags := map[string][]string{}
	for name, why := range absent {
		flags[why] = append(flags[why], "`"+verb+"--"+name+"`")
	}
	var rows []string
	for why := range flags {
		slices.Sort(flags[why])
		rows = append(rows, "| "+strings.Join(flags[why], ", ")+" | "+why+" |\n")
	}
	slices.Sort(rows)
	return strings.Join(rows, "")
}
