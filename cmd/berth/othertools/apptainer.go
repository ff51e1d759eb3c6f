package othertools

import (
	"slices"
	"strings"
)

// apptainerFlags returns Apptainer's flags of exec, run and shell that berth run doesn't have.
func apptainerFlags() map[string]string {
	const (
		gpu      = "--gpus 1 gives the task a GPU of its own and the driver's files, --gpus all all GPUs"
		bind     = "-v SRC:DST[:ro] binds a directory of the host; DST is never left out"
		dir      = "-w DIR is the directory that the command starts in"
		home     = "no home directory is bound; -v $HOME:$HOME -w $HOME brings it in"
		isolated = "isn't needed: a task sees nothing of the host's files, processes and environment but what -v and -e bring in"
		writable = "isn't needed: a task may write to its root, and what it writes is removed with the task"
		login    = "berth login REGISTRY logs in"
		plain    = "server = \"http://…\" in /etc/containerd/certs.d/REGISTRY/hosts.toml allows plain HTTP"
		sif      = "berth apptainer run takes SIF files, and has what flags of theirs there are"
		debug    = "errors say what has failed, and berth doctor checks the server"
		// how the root is made
		overlayfs = "isn't needed: overlayfs makes a task's root of the image's layers"
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
		"f": "isn't needed: a task runs as the image's user, mostly root; -u USER chooses another",
		"W": isolated, "no-init": "isn't needed: without --init the command is the task's first process", "no-umask": isolated, "no-eval": isolated,
		"no-privs": "--cap-drop ALL removes all capabilities", "keep-privs": "--cap-add adds a capability",
		"allow-setuid": "--security-opt no-new-privileges=false lets set-uid programs raise their rights", "security": "-u USER, --security-opt and --cap-drop say what a task may",
		"pid-file": "berth inspect -f '{{.State.Pid}}' TASK prints the first process", "sharens": "berth exec TASK COMMAND runs a command in a task's namespaces",
		"shell": "--entrypoint /bin/sh starts that program", "s": "--entrypoint /bin/sh starts that program",
		"docker-login": login, "docker-username": login, "docker-password": login,
		"disable-cache": "isn't needed: an image is kept once, and berth prune --all frees what no task uses",
		"nohttps":       plain, "no-https": plain, "passphrase": sif, "pem-path": sif, "sif-fuse": sif, "unsquash": sif,
		"underlay": overlayfs, "tmp-sandbox": overlayfs, "vm": overlayfs, "oci": overlayfs, "no-compat": overlayfs,
		"fusemount": "-v DIR:DST binds a directory that the host has mounted", "network-args": "a task shares the host's network, where each port is the host's",
		"apply-cgroups": "-m, --cpus and --pids-limit limit a task", "cdi-dirs": "host.cdi in /etc/berth/config.toml names directories of CDI specs",
		"verbose": debug, "debug": debug, "silent": debug,
		"app": "berth apptainer run --app NAME FILE runs an app of a SIF file",
	}
}

// apptainerExecFlags returns apptainerFlags for berth exec: apptainer exec takes an image, berth exec a
// running task.
func apptainerExecFlags() map[string]string {
	all := map[string]string{}
	for name, why := range apptainerFlags() {
		with := "; with berth run: "
		if strings.HasPrefix(why, "isn't ") {
			with = "; with berth run it "
		}
		all[name] = "berth apptainer exec takes Apptainer's flags" + with + why
	}
	return all
}

// ExplainTakenImage explains the value of a flag of berth run that is an image, because the flag is a switch in Apptainer
// or Slurm: run -u docker://ubuntu. It is "" for all other values.
func ExplainTakenImage(flag, value string) string {
	switches := map[string]string{
		"label":   "-l NAME=VALUE labels the task; --label (Slurm's -l) isn't needed, for each line of a gang is shown behind its rank's name",
		"volume":  "-v SRC:DST binds a directory of the host",
		"workdir": "-w DIR is the directory that the command starts in; --writable (Apptainer's -w) isn't needed, for a task may write to its root",
		"user":    "-u USER runs as another user; --userns (Apptainer's -u) isn't needed, for a task has the host's users",
		"publish": "-p PORT publishes a port; --pid (Apptainer's -p) isn't needed, for a task has a PID namespace of its own",
	}
	if why := switches[flag]; why != "" && isImage(value) {
		return "--" + flag + " " + value + ": " + why
	}
	return ""
}

// pullFlags returns Apptainer's flags of pull that berth pull doesn't have.
func pullFlags() map[string]string {
	const file, again = "berth pull writes no SIF file, but keeps images where berth run finds them by their names", "isn't needed: berth pull asks the registry each time"
	run := apptainerFlags()
	return map[string]string{
		"name": file, "dir": file, "force": again, "F": again, "disable-cache": again,
		"docker-login": run["docker-login"], "docker-username": run["docker-login"], "docker-password": run["docker-login"], "nohttps": run["nohttps"], "no-https": run["no-https"],
	}
}

// isImage reports whether a word can't be anything but an image of Apptainer's.
func isImage(word string) bool {
	scheme, _, ok := strings.Cut(word, "://")
	return strings.HasSuffix(word, ".sif") || ok && slices.Contains([]string{"docker", "oras", "library", "shub", "instance", "docker-daemon"}, scheme)
}
