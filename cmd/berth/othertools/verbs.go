package othertools

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/internal/spell"
)

// Verbs returns verbs and programs of other tools that berth doesn't have, each with the command of
// berth or of another tool to use instead. Verbs that are a typing error away from one of berth's are left out.
func Verbs() map[string]string {
	const (
		// docker, and verbs of several tools
		anew    = "a task starts once, with a fresh root: berth rm -f TASK removes it and the same berth run starts another; berth run -d --restart always does so by itself"
		build   = "berth makes no images: docker, podman and buildah do. berth pull gets those of a registry, and berth run docker-archive:FILE takes what docker save writes"
		network = "a task shares the host's network, where each port is the host's, or has none (berth run --network none)"
		volume  = "there are no volumes with names: berth run -v DIR:DST binds a directory of the host"
		files   = "berth exec TASK cat FILE > COPY copies a file out of a task, berth exec -i TASK tee FILE < COPY into it, and berth run -v DIR:DST shares a directory"
		shell   = "berth run -it --gpus 1 IMAGE bash starts a shell in a new task, berth exec -it TASK bash in a running one"
		pause   = "what is paused would keep its GPUs; berth stop ends a task"
		list    = "berth ps -a"
		// Apptainer, Slurm, and docker's clusters
		queue   = "berth leases shows the tasks that hold devices and the requests that wait, berth ps all tasks"
		digests = "digests are always checked; berth images --digests shows them, and IMAGE@sha256:… names one"
		script  = "berth run -d --wait=1h --gpus 2 -v $PWD:$PWD -w $PWD IMAGE bash SCRIPT queues a task, and berth logs shows its output"
		cancel  = "berth stop TASK ends a task, berth release LEASE a lease of berth alloc"
		gpus    = "berth gpus shows GPUs, their state and their holders"
		account = "there are no accounts and quotas: berth leases shows who holds what, berth ps -a all tasks"
		// podman, nerdctl, ctr
		pod     = "berth run -n 2 starts ranks that share a network, berth run --gang FILE different ones"
		kube    = "each container of the file is a berth run -d; podman itself gets GPUs after berth setup podman"
		service = "a systemd service has ExecStart=/usr/bin/berth run … in the foreground"
		oneList = "tasks and images are in one list for the whole server: berth ps -a, berth images"
	)
	return map[string]string{
		// docker, and verbs of several tools
		"build": build, "buildx": build, "commit": build, "tag": build, "push": build, "import": build,
		"compose": "each service is a berth run -d --restart always; docker compose itself gets GPUs after berth setup docker", "up": "each service is a berth run -d", "down": "berth stop and berth rm",
		"ls": list, "list": list, "status": list,
		"cp": files, "diff": files, "export": files,
		"create": "berth run -d makes a task and starts it", "start": anew, "restart": anew, "rename": "berth run --name gives a task its name",
		"shell":  shell + "; berth apptainer shell FILE one in a SIF file",
		"events": "the log of events is events.log in berth's data directory", "history": "skopeo inspect shows an image's layers",
		"load": "berth run docker-archive:FILE COMMAND takes an archive as it is", "save": "skopeo copy writes archives",
		"search":  "the registry's own pages search it",
		"network": network, "port": network, "volume": volume,
		"nvidia-smi": gpus, "smi": gpus,
		"pause": pause, "unpause": pause,
		"remove": "berth rm", "delete": "berth rm", "top": "berth stats --no-stream TASK shows what it uses, berth exec TASK ps its processes, if the image has ps", "update": "limits and --restart stay as berth run has set them; berth stop ends a task and its restarts",
		// Apptainer, Slurm, and docker's clusters
		"srun":   "berth run --gpus 2 IMAGE COMMAND runs a task, berth alloc 2 COMMAND a command of the host",
		"salloc": "berth alloc 2 bash holds two GPUs for a shell",
		"sbatch": "berth run -d --wait=1h --gpus 2 -v $PWD:$PWD -w $PWD IMAGE bash SCRIPT queues a task (#SBATCH lines are not read), and berth logs shows its output",
		"squeue": queue, "queue": queue, "sprio": queue, "sinfo": gpus,
		"scancel": cancel, "sattach": "berth attach TASK, or berth logs -f TASK",
		"sacct": "berth ps -a shows tasks that have ended, too", "sstat": "berth stats", "scontrol": "berth inspect TASK shows a task, berth gpus the devices",
		"verify": digests + "; berth apptainer verify FILE verifies the signatures of a SIF file", "sign": digests, "key": "berth apptainer key lists and imports the keys of SIF files",
		"apps": "berth run IMAGE COMMAND runs what is in the image",
		"sif":  "berth apptainer inspect FILE shows what a SIF file says of itself, berth images the images that are here", "overlay": "berth run -v DIR:DST keeps what is written below DST; the rest of a task's root is removed with the task",
		"remote": "berth login REGISTRY logs in to a registry, berth pull REGISTRY/NAME:TAG gets its images", "oci": "berth run takes images and their layouts as they are: berth run oci:PATH",
		"mpirun": "mpirun -n 4 berth run --mpi --gpus 1 IMAGE COMMAND starts ranks in tasks", "torchrun": "berth run --gpus 4 IMAGE torchrun --nproc-per-node 4 … runs it in a task",
		"sacctmgr": account, "sreport": account, "sshare": account, "seff": "berth stats shows what a running task uses",
		"sdiag": queue, "smap": gpus, "sview": gpus, "nvtop": gpus, "gpustat": gpus, "sbcast": files, "scrontab": "cron and timers of systemd start berth run",
		"qsub": script, "bsub": script, "qstat": queue, "bjobs": queue, "qdel": cancel, "bkill": cancel,
		"keyserver": digests, "trust": digests, "capability": "berth run --cap-add CAP adds a capability",
		"run-help": "berth images --json has an image's labels", "test": "berth run IMAGE COMMAND runs what is in the image",
		"registry": "berth login REGISTRY logs in to a registry",
		// podman, nerdctl, ctr, and further verbs of docker
		"pod": pod, "pods": pod, "play": kube, "kube": kube, "generate": service, "quadlet": service,
		"mount": files, "umount": files, "unmount": files, "untag": "berth rmi NAME removes a name of an image", "auto-update": "berth run --pull always takes the newest image",
		"healthcheck": "berth makes no health checks; berth exec TASK COMMAND makes one", "machine": "berth has no daemon to connect to: it works on this server",
		"namespace": oneList, "namespaces": oneList, "task": list, "tasks": list, "containers": list, "content": "berth system df -v shows layers", "snapshots": "berth system df -v shows layers",
		"builder": build, "docker-compose": "each service is a berth run -d --restart always; docker compose itself gets GPUs after berth setup docker",
		"manifest": "skopeo inspect --raw shows an image's manifest", "debug": shell, "checkpoint": "berth stores no running task; programs write checkpoints of their own",
		"config":  "berth info shows what berth is set up with, and /etc/berth/config.toml is the file",
		"context": "berth has no daemon to connect to: it works on this server", "swarm": "berth is for one server; Slurm and Kubernetes are for many", "service": "berth run -d --restart always keeps a task running",
		"node": "berth is for one server; Slurm and Kubernetes are for many", "secret": "-v FILE:/run/secrets/NAME:ro brings a file in", "stack": "berth is for one server; Slurm and Kubernetes are for many",
		"plugin": "berth has no plugins",
	}
}

// Groups returns docker's and Apptainer's groups of verbs ("container", "instance"). Each maps the verbs of the group to
// berth's commands, unless berth's verb has the same name. "" stands for the group without a verb.
func Groups() map[string]map[string]string {
	return map[string]map[string]string{
		"container": {"": "ps -a", "ls": "ps", "list": "ps", "prune": "rm $(berth ps -aq --filter status=exited)", "top": "stats"},
		"image":     {"": "images", "ls": "images", "list": "images", "rm": "rmi", "remove": "rmi", "inspect": "images --json", "pull": "pull", "prune": "prune"},
		"system":    {"": "system df", "df": "system df", "prune": "system prune", "reset": "system prune --all", "info": "info"},
		"instance":  {"": "ps", "list": "ps", "start": "run -d --name NAME IMAGE COMMAND", "run": "run -d --name NAME IMAGE COMMAND"},
		"cache":     {"": "images", "list": "images", "clean": "prune"},
	}
}

// SuggestVerb returns the end of an error's text that names the command to use instead of an
// unknown verb, and of the word next behind it.
func SuggestVerb(app *cli.App, name, next string) string {
	if verbs, is := Groups()[name]; is {
		switch verb := verbs[next]; {
		case verb != "":
			return ": berth " + verb
		case app.Command(next) != nil:
			return ": berth " + next
		case Verbs()[next] != "":
			name = next
		default:
			return ": berth " + verbs[""]
		}
	}
	if serves, known := Verbs()[name]; known {
		return ": " + serves
	}
	return spell.Suggestion(name, listVerbs(app)...)
}

func listVerbs(app *cli.App) (names []string) {
	for _, c := range app.VisibleCommands() {
		names = append(names, c.Name)
	}
	return names
}

// ExplainExecOfImage returns the error of berth exec for a word that names no task. If the word looks like
// an image or an instance of Apptainer, the error names the command to use; otherwise it is err.
func ExplainExecOfImage(word string, err error) error {
	if name, ok := strings.CutPrefix(word, "instance://"); ok {
		return fmt.Errorf("%s: tasks are named without instance://, as in berth exec %s COMMAND", word, name)
	}
	if strings.HasSuffix(word, ".sif") {
		return fmt.Errorf("%s is no task: berth apptainer exec %[1]s COMMAND runs a command of a SIF file, berth run IMAGE COMMAND one of an image of layers", word)
	}
	if strings.Contains(word, "/") {
		return fmt.Errorf("%s is no task: berth exec is for running tasks; berth run IMAGE COMMAND runs a command in the image of a registry, an archive or a directory", word)
	}
	return err
}
