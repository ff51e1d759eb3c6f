package othertools

import "strings"

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
	)
	return map[string]string{
		"gres": devices, "gpus-per-node": devices, "gpus-per-socket": devices, "gpus-per-task": perTask, "tres-per-task": perTask,
		"ntasks": ranks, "ntasks-per-node": ranks, "nodes": ranks, "N": ranks, "nodelist": "isn't needed: berth is for this server alone",
		"mem": limits, "mem-per-gpu": limits, "mem-per-cpu": limits, "cpus-per-task": limits, "cpus-per-gpu": limits,
		"time":      "--timeout 2h ends the task after that time",
		"partition": order, "qos": order, "account": order, "A": order, "priority": order,
		"constraint": "--gpus h100:2 asks for GPUs of a model",
		"job-name":   name, "J": name, "chdir": "-w DIR is the directory that the command starts in",
		"output": output, "o": output, "error": output,
		"pty":              "-it connects the command with your terminal",
		"container-image":  "the image is the first word after the flags, as in berth run nvcr.io/nvidia/pytorch:25.01-py3 python train.py",
		"container-mounts": "-v SRC:DST[:ro] binds a directory of the host",
		"jobid":            step, "overlap": step, "array": several, "dependency": after,
		"wrap":      "berth run -d IMAGE sh -c 'COMMAND' takes a line of shell",
		"requeue":   "--restart on-failure:3 with -d starts a task again that has failed",
		"exclusive": "isn't needed: leased devices are the task's alone", "immediate": "isn't needed: without --wait a request that can't be served now is refused",
	}
}

// IsSlurmTime reports whether a word looks like a time of Slurm: [DAYS-]HOURS:MINUTES[:SECONDS].
func IsSlurmTime(word string) bool {
	return strings.Contains(word, ":") && strings.Trim(word, "0123456789:-") == ""
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
		case "nodes", "N", "nodelist", "partition", "qos", "account", "A", "priority", "exclusive", "immediate":
			all[name] = why
		case "ntasks", "ntasks-per-node":
			all[name] = "berth alloc runs one command, which may start as many processes as it likes"
		case "job-name", "J", "pty":
			all[name] = "isn't needed: the command runs in this terminal, and berth leases shows it by its name"
		case "mem", "mem-per-gpu", "mem-per-cpu", "cpus-per-task", "cpus-per-gpu":
			all[name] = "berth alloc leases devices and limits nothing else; berth run does"
		case "time":
			all[name] = "timeout 2h before the command ends it after that time"
		}
	}
	all["nv"], all["G"] = request, request
	for short, long := range map[string]string{"n": "ntasks", "c": "cpus-per-task", "t": "time", "p": "partition"} {
		all[short] = all[long]
	}
	return all
}
