package main

// Words of Apptainer and Slurm: what people type who know these, and what serves here.

// apptainerFlags are Apptainer's flags of exec, run and shell that berth run doesn't have.
func apptainerFlags() map[string]string {
	const isolated = "a task is isolated from the host without being asked"
	return map[string]string{
		"nv":             "--gpus 1 gives the task a GPU of its own, with the driver's files",
		"nvccli":         "--gpus 1 gives the task a GPU of its own, with the driver's files",
		"rocm":           "--device amd.com/gpu=all gives what a CDI spec of the host's describes",
		"bind":           "-v SRC:DST[:ro] binds a directory of the host",
		"B":              "-v SRC:DST[:ro] binds a directory of the host",
		"pwd":            "-w DIR is the directory that the command starts in",
		"cwd":            "-w DIR is the directory that the command starts in",
		"home":           "no home directory is bound; -v $HOME:$HOME -w $HOME brings it in",
		"no-home":        "no home directory is bound unless -v does it",
		"contain":        isolated,
		"containall":     isolated,
		"C":              isolated,
		"cleanenv":       "a task has the image's environment alone; -e NAME passes a variable on",
		"writable":       "a task's root can be written to; it goes with the task",
		"fakeroot":       "a task runs as the image's user; -u USER chooses another",
		"writable-tmpfs": "a task's root can be written to; it goes with the task",
	}
}

// slurmFlags are flags of srun, sbatch and salloc that berth run and berth alloc don't have.
func slurmFlags() map[string]string {
	const (
		devices = "--gpus 2 or --gpus h100:2 asks for devices"
		ranks   = "-n RANKS --gpus-per-rank N starts a gang; on several servers Slurm starts the tasks, and berth isolates each"
		order   = "requests are served in the order in which they come, on this server"
	)
	return map[string]string{
		"gres": devices, "gpus-per-task": devices, "gpus-per-node": devices, "gpus-per-socket": devices, "tres-per-task": devices,
		"ntasks": ranks, "ntasks-per-node": ranks, "nodes": ranks, "nodelist": ranks,
		"mem": "-m 64g limits memory", "mem-per-gpu": "-m 64g limits memory", "mem-per-cpu": "-m 64g limits memory",
		"cpus-per-task": "--cpus 8 limits CPUs", "cpus-per-gpu": "--cpus 8 limits CPUs",
		"time": "--timeout 2h ends the task after that time", "partition": order, "qos": order, "account": order, "priority": order,
		"job-name": "--name NAME names the task", "chdir": "-w DIR is the directory that the command starts in",
		"output": "berth run -d keeps what a task writes, and berth logs shows it", "error": "berth run -d keeps what a task writes, and berth logs shows it",
		"exclusive": "leased devices are always the task's alone", "immediate": "without --wait a request that can't be served now is refused",
	}
}

// allocFlags are words that people try with berth alloc, which takes the request as its first word.
func allocFlags() map[string]string {
	const request = "the request is the first word, as in berth alloc 2 -- python train.py"
	all := map[string]string{}
	for name, why := range slurmFlags() {
		switch name {
		case "gres", "gpus-per-task", "gpus-per-node", "gpus-per-socket", "tres-per-task":
			all[name] = request
		case "ntasks", "ntasks-per-node", "nodes", "nodelist", "partition", "qos", "account", "priority", "exclusive", "immediate":
			all[name] = why
		case "mem", "mem-per-gpu", "mem-per-cpu", "cpus-per-task", "cpus-per-gpu":
			all[name] = "berth alloc leases devices and limits nothing else; berth run does"
		case "time":
			all[name] = "timeout 2h before the command ends it after that time"
		}
	}
	all["nv"] = request
	return all
}

// otherToolsVerbs are verbs and programs of Apptainer, Slurm and others, and what serves in their place.
func otherToolsVerbs() map[string]string {
	return map[string]string{
		"srun": "berth run, or berth alloc for a command of the host", "salloc": "berth alloc 2 bash", "sbatch": "berth run -d --wait=1h starts when its devices are free",
		"squeue": "berth leases shows who holds devices and who waits", "sinfo": "berth gpus", "scancel": "berth stop, or berth release for a lease",
		"sacct": "berth ps -a", "scontrol": "berth inspect", "queue": "berth leases shows who holds devices and who waits",
		"instance": "berth run -d starts a task in the background, and berth ps shows it", "verify": "digests are always checked; IMAGE@sha256:… names one",
		"apps": "berth run IMAGE COMMAND runs what is in the image", "cache": "berth images, and berth prune frees what no task uses",
		"context": "there is no daemon, and so no other one", "swarm": "berth is for one server; Slurm and Kubernetes are for many", "service": "berth run -d --restart always keeps a task running",
		"node": "berth is for one server; Slurm and Kubernetes are for many", "secret": "-v FILE:/run/secrets/NAME:ro brings a file in", "stack": "berth is for one server; Slurm and Kubernetes are for many",
		"plugin": "there are none",
	}
}
