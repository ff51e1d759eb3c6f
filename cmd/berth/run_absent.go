package main

import "strings"

// absent are docker's flags of run that berth won't have, and what serves instead.
// Those of Windows are left out.
func absent() map[string]string {
	const (
		network = "a task shares the host's network, or has none (--network none): what it listens on is reached at the host's address"
		health  = "nobody would ask; have the one who needs the task ask it, or berth exec"
		block   = "berth doesn't divide the bandwidth of disks"
		period  = "--cpus says the same in one number"
		realtm  = "the kernel's real-time groups are left to the host; --ulimit rtprio=N lets a task's threads be of real time"
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
		"detach-keys":           "berth attach has it, where somebody is to leave",
		"device-cgroup-rule":    "the rules are the walls between tasks; devices come with --gpus and --device",
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
		"no-healthcheck":        "berth makes no health checks, an image's neither",
		"oom-kill-disable":      "a task that hangs without memory keeps its GPUs; --oom-score-adj has others end first",
		"publish":               network,
		"publish-all":           network,
		"quiet":                 "progress is said on standard error, and only of what takes long",
		"sig-proxy":             "signals are always passed on; in a terminal, berth run -d starts a task that gets none",
		"storage-opt":           "what a task writes goes to the disk of /var/lib/berth; --tmpfs and -v put it elsewhere",
		"use-api-socket":        "there is no daemon, and no socket of it",
		"volume-driver":         "berth has no volumes with names; -v DIR:DST binds a directory of the host",
		"volumes-from":          "-v DIR:DST binds the same directory in both",
	}
}

// absentShort are single letters of docker's.
func absentShort() map[string]string {
	return map[string]string{"a": "attach", "p": "publish", "P": "publish-all", "q": "quiet"}
}

// whyAbsent explains a flag of a verb that people know from docker; "" if they don't.
func whyAbsent(verb, flag string) string {
	if verb != "run" {
		return ""
	}
	name := strings.TrimLeft(flag, "-")
	if long, ok := absentShort()[name]; ok {
		name = long
	}
	if why, ok := absent()[name]; ok {
		return "there is no --" + name + ": " + why
	}
	return ""
}
