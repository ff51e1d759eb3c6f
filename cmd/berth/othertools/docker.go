package othertools

// DockerFlags returns docker's flags that berth doesn't have, by verb and name, each with what to use instead.
func DockerFlags() map[string]map[string]string {
	const (
		size  = "berth system df -v shows what each task has written"
		trust = "digests are always checked; NAME@sha256:… names one"
	)
	return map[string]map[string]string{
		"run":     dockerRunFlags(),
		"ps":      {"size": size + "; --format '{{.Names}} {{.Size}}' too"},
		"images":  {"all": "berth images shows all that are here, as there are none in between", "no-trunc": "--json has ids in full", "tree": "--json has each image's platform"},
		"inspect": {"size": size, "type": "what is named is looked for among tasks, leases and containers"},
		"rm":      {"link": "tasks have no links"},
		"stop":    {"signal": "berth run --stop-signal says which one it is, and berth kill -s SIGNAL sends another"},
		"logs":    {"details": "lines have no attributes; --timestamps says when they were written"},
		"exec":    {"detach-keys": "berth exec -d leaves the command alone"},
		"stats":   {"all": "what doesn't run uses nothing; berth ps -a shows all"},
		"pull":    {"all-tags": "berth pull NAME:TAG… gets those that are named", "disable-content-trust": trust},
		"rmi":     {"no-prune": "layers that nothing needs go with the last name", "platform": "the name goes, whatever platform its image is for"},
		"prune":   {"volumes": "berth has no volumes with names, and removes no directories of the host"},
	}
}

// dockerShortFlags returns docker's short flags that berth doesn't have.
func dockerShortFlags(verb string) map[string]string {
	return map[string]map[string]string{
		"run": {"a": "attach", "P": "publish-all", "q": "quiet"},
		"ps":  {"s": "size"}, "images": {"a": "all"}, "inspect": {"s": "size"},
		"rm": {"l": "link"}, "stop": {"s": "signal"}, "stats": {"a": "all"}, "pull": {"a": "all-tags"},
	}[verb]
}

// dockerRunFlags returns docker's flags of run that berth doesn't have. Flags for Windows are left out.
func dockerRunFlags() map[string]string {
	const (
		network = "a task shares the host's network, or has none (--network none): what it listens on is reached at the host's address; a network of its own is a gang's (-n 1)"
		health  = "berth makes no health checks; berth exec can run the check"
		block   = "berth doesn't divide the bandwidth of disks"
		period  = "--cpus says the same in one number"
		realtm  = "berth doesn't change the kernel's real-time groups; --ulimit rtprio=N lets a task's threads have real-time priorities"
	)
	return map[string]string{
		"attach":                "standard output and error are always attached without -d, input with -i",
		"blkio-weight":          block,
		"blkio-weight-device":   block,
		"cgroup-parent":         "all tasks are below /berth; those of a berth alloc are below its own",
		"cpu-period":            period,
		"cpu-quota":             period,
		"cpu-rt-period":         realtm,
		"cpu-rt-runtime":        realtm,
		"detach-keys":           "berth attach has it",
		"device-cgroup-rule":    "device rules isolate tasks; devices come with --gpus and --device",
		"device-read-bps":       block,
		"device-read-iops":      block,
		"device-write-bps":      block,
		"device-write-iops":     block,
		"disable-content-trust": "digests are always checked; IMAGE@sha256:… names one",
		"expose":                network,
		"health-cmd":            health,
		"health-interval":       health,
		"health-retries":        health,
		"health-start-interval": health,
		"health-start-period":   health,
		"health-timeout":        health,
		"ip":                    network,
		"ip6":                   network,
		"isolation":             "it is of Windows",
		"kernel-memory":         "the kernel counts it as memory; --memory limits both",
		"link":                  network,
		"link-local-ip":         network,
		"log-driver":            "a detached task's log is a file, which berth logs shows; --log-opt bounds it",
		"mac-address":           network,
		"memory-swappiness":     "the kernel knows it on cgroup v1 alone; --memory-swap with the value of --memory forbids swap",
		"net-alias":             network,
		"network-alias":         network,
		"no-healthcheck":        "berth makes no health checks, not even an image's",
		"oom-kill-disable":      "a task that hangs without memory keeps its GPUs; --oom-score-adj has others end first",
		"publish-all":           "a task shares the host's network: all its ports are the host's already",
		"quiet":                 "progress goes to standard error, and only if a step takes long",
		"sig-proxy":             "signals are always passed on; in a terminal, berth run -d starts a task that gets none",
		"use-api-socket":        "there is no daemon, and no socket of it",
		"volume-driver":         "berth has no volumes with names; -v DIR:DST binds a directory of the host",
		"volumes-from":          "-v DIR:DST binds the same directory in both",
	}
}
