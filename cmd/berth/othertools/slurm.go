package othertools

import (
	"slices"
	"strings"
)

// slurmFlags returns flags of srun, sbatch and salloc that berth run and berth alloc don't have.
func slurmFlags() map[string]string {
	const (
		devices = "--gpus 2 or --gpus h100:2 asks for GPUs"
		perTask = "-n 4 --gpus-per-rank 1 starts four tasks together with a GPU each; one task alone takes --gpus 1"
		ranks   = "berth is for one server, where -n 4 --gpus-per-rank 1 starts four tasks together; on several Slurm starts them"
		limits  = "-m 64g limits memory, --cpus 8 limits CPUs"
		order   = "isn't needed: there are no partitions and accounts; requests are served in the order in which they come"
		name    = "--name NAME names the task"
		output  = "berth run -d keeps what a task writes, and berth logs shows it; > FILE after berth run writes it to a file"
		step    = "berth exec -it TASK bash runs a command in a running task"
		several = "a loop in the shell starts several: for i in 1 2 3 4; do berth run -d --wait=1h -e TASK_ID=$i …; done"
		after   = "berth wait TASK && berth run … starts one task after another"
		near    = "isn't needed: a task runs on the CPUs near its GPUs; --cpuset-cpus and --cpuset-mems choose others"
		later   = "cron, at and timers of systemd start berth run later"
		differ  = "--gang FILE starts ranks that differ"
		told    = "berth wait TASK; mail … tells of its end"
		here    = "isn't needed: berth is for this server alone"
		outside = "isn't needed: a task sees nothing of the host's files, processes and environment but what -v and -e bring in"
	)
	return map[string]string{
		"gres": devices, "gpus-per-node": devices, "gpus-per-socket": devices, "gpus-per-task": perTask, "tres-per-task": perTask,
		"ntasks": ranks, "ntasks-per-node": ranks, "nodes": ranks, "N": ranks, "nodelist": here, "exclude": here, "x": here, "switches": here,
		"mem": limits, "mem-per-gpu": limits, "mem-per-cpu": limits, "cpus-per-task": limits, "cpus-per-gpu": limits,
		"time":      "--timeout 2h ends the task after that time",
		"partition": order, "qos": order, "account": order, "A": order, "priority": order, "reservation": order, "licenses": order, "L": order,
		"constraint": "--gpus h100:2 asks for GPUs of a model",
		"job-name":   name, "J": name, "chdir": "-w DIR is the directory that the command starts in", "D": "-w DIR is the directory that the command starts in", "comment": "--label comment=TEXT labels the task",
		"output": output, "o": output, "error": output, "open-mode": output, "unbuffered": "isn't needed: output is shown as it is written",
		"pty":              "-it connects the command with your terminal",
		"container-image":  "the image is the first word after the flags, as in berth run nvcr.io/nvidia/pytorch:25.01-py3 python train.py",
		"container-mounts": "-v SRC:DST[:ro] binds a directory of the host",
		"jobid":            step, "overlap": step, "array": several, "dependency": after,
		"wrap":              "berth run -d IMAGE sh -c 'COMMAND' takes a line of shell",
		"container-workdir": "-w DIR is the directory that the command starts in", "container-name": name, "container-env": "-e NAME passes a variable on",
		"container-mount-home": "-v $HOME:$HOME -w $HOME brings it in", "no-container-mount-home": outside,
		"container-writable":   "isn't needed: a task may write to its root, and what it writes is removed with the task",
		"container-entrypoint": "isn't needed: the image's entrypoint is run; --entrypoint PROGRAM replaces it",
		"container-save":       "berth makes no images; -v DIR:DST keeps what is written below DST",
		"container-remap-root": "isn't needed: a task runs as the image's user, mostly root; -u USER chooses another",
		"export":               "-e NAME passes a variable on; a task has no others of the caller's",
		"mail-type":            told, "mail-user": told, "begin": later, "deadline": "--timeout 2h ends the task after that time",
		"signal":   "berth kill -s USR1 TASK sends a signal; --stop-signal and --stop-timeout say how a task is ended",
		"gpu-bind": "--bind-gpus rank shows each rank of a gang its own GPUs alone", "ntasks-per-gpu": perTask,
		"cpu-bind": near, "mem-bind": near, "hint": near, "threads-per-core": near, "distribution": near, "cores-per-socket": near,
		"gpu-freq": "nvidia-smi -lgc sets clocks, on the host", "kill-on-bad-exit": "isn't needed: when a rank of a gang fails, the others are ended", "K": "isn't needed: when a rank of a gang fails, the others are ended",
		"multi-prog": differ, "het-group": differ, "tmp": "--tmpfs /scratch:size=10g mounts memory, -v DIR:DST a directory of the host",
		"nice": "--cpu-shares is the task's weight among others that want the same CPUs", "propagate": "--ulimit NAME=VALUE limits its processes",
		"x11": "-v /tmp/.X11-unix:/tmp/.X11-unix -e DISPLAY brings in the host's display", "test-only": "berth gpus shows what is free",
		"parsable": "isn't needed: berth run -d prints the id alone", "oversubscribe": "GPUs belong to one task at a time; slices of a MIG GPU are asked for as --gpus 1g.10gb",
		"no-requeue": "isn't needed: without --restart nothing is started again", "input": "-i connects standard input: berth run -i IMAGE COMMAND < FILE",
		"uid": "-u USER runs as another user", "I": "isn't needed: without --wait a request that can't be served now is refused",
		"share":   "GPUs belong to one task at a time; slices of a MIG GPU are asked for as --gpus 1g.10gb",
		"profile": "berth stats shows what a task uses", "acctg-freq": "berth stats shows what a task uses",
		"requeue":   "--restart on-failure:3 with -d starts a task again that has failed",
		"exclusive": "isn't needed: leased devices are the task's alone", "immediate": "isn't needed: without --wait a request that can't be served now is refused",
	}
}

// IsSlurmTime reports whether a word looks like a time of Slurm, [DAYS-]HOURS:MINUTES[:SECONDS] or MINUTES, and not like the
// beginning of an image's id.
func IsSlurmTime(word string) bool {
	const leastID = 4 // digits
	return (strings.Contains(word, ":") || word != "" && len(word) < leastID) && strings.Trim(word, "0123456789:-") == ""
}

// IsSlurmDependency reports whether a word is the value of Slurm's -d: afterok:4711.
func IsSlurmDependency(word string) bool {
	kind, id, ok := strings.Cut(word, ":")
	return ok && slices.Contains([]string{"after", "afterany", "afterok", "afternotok", "aftercorr"}, kind) && strings.Trim(id, "0123456789:") == ""
}

// allocFlags returns flags of salloc and srun that berth alloc doesn't have. The request is its first
// argument.
func allocFlags() map[string]string {
	const request = "the request is the first word, as in berth alloc 2 -- python train.py"
	all := map[string]string{}
	for name, why := range slurmFlags() {
		switch name {
		case "gres", "gpus-per-task", "gpus-per-node", "gpus-per-socket", "tres-per-task", "constraint":
			all[name] = request
		case "nodes", "N", "nodelist", "exclude", "x", "reservation", "licenses", "L", "mail-type", "mail-user", "begin", "partition", "qos", "account", "A", "priority", "exclusive", "immediate":
			all[name] = why
		case "ntasks", "ntasks-per-node":
			all[name] = "berth alloc runs one command, which may start as many processes as it likes"
		case "job-name", "J":
			all[name] = "--name NAME is what berth leases shows"
		case "pty":
			all[name] = "isn't needed: the command runs in this terminal, and berth leases shows it by its name"
		case "mem", "mem-per-gpu", "mem-per-cpu", "cpus-per-task", "cpus-per-gpu":
			all[name] = "berth alloc leases devices and limits nothing else; berth run does"
		case "time":
			all[name] = "timeout 2h before the command ends it after that time"
		}
	}
	const (
		back = "& behind the command runs it in the background: berth alloc 2 -- sleep 1h &"
		host = "isn't needed: the command is one of the host, with the caller's environment and files"
	)
	all["nv"], all["G"], all["C"] = request, request, request
	all["w"], all["no-shell"], all["d"], all["detach"] = all["nodelist"], back, back, back
	all["timeout"], all["i"] = all["time"], all["pty"]
	for _, name := range []string{"rm", "e", "env", "v", "volume", "workdir"} {
		all[name] = host
	}
	all["cpus"], all["memory"], all["m"] = all["mem"], all["mem"], all["mem"]
	for short, long := range map[string]string{"n": "ntasks", "c": "cpus-per-task", "t": "time", "p": "partition"} {
		all[short] = all[long]
	}
	return all
}
