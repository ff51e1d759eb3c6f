package othertools

// apptainerFlags returns Apptainer's flags of exec, run and shell that berth run doesn't have.
func apptainerFlags() map[string]string {
	const (
		gpu      = "--gpus 1 gives the task a GPU of its own and the driver's files, --gpus all all GPUs"
		bind     = "-v SRC:DST[:ro] binds a directory of the host; DST is never left out"
		dir      = "-w DIR is the directory that the command starts in"
		home     = "no home directory is bound; -v $HOME:$HOME -w $HOME brings it in"
		isolated = "isn't needed: a task sees nothing of the host's files, processes and environment but what -v and -e bring in"
		writable = "isn't needed: a task may write to its root, and what it writes is removed with the task"
	)
	return map[string]string{
		"nv": gpu, "nvccli": gpu,
		"rocm": "--device amd.com/gpu=all gives the GPUs that a CDI spec of the host describes",
		"bind": bind, "B": bind, "pwd": dir, "cwd": dir, "home": home, "H": home,
		"no-home": isolated, "no-mount": isolated, "contain": isolated, "containall": isolated, "C": isolated, "compat": isolated,
		"cleanenv": "isn't needed: a task has the image's environment alone; -e NAME passes a variable on",
		"writable": writable, "writable-tmpfs": writable,
		"overlay": "-v DIR:DST keeps what is written below DST; the rest of a task's root is removed with the task",
		"scratch": "--tmpfs DIR mounts empty memory there", "S": "--tmpfs DIR mounts empty memory there",
		"fakeroot": "isn't needed: a task runs as the image's user, mostly root; -u USER chooses another",
		"add-caps": "--cap-add adds a capability", "drop-caps": "--cap-drop removes one",
		"app": "berth runs no apps of SIF images; berth run IMAGE COMMAND runs a command",
	}
}

// apptainerExecFlags returns apptainerFlags for berth exec: apptainer exec takes an image, berth exec a
// running task.
func apptainerExecFlags() map[string]string {
	all := map[string]string{}
	for name, why := range apptainerFlags() {
		all[name] = why + "; berth exec is for running tasks, berth run IMAGE COMMAND for images"
	}
	return all
}
