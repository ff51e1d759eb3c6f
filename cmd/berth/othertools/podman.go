package othertools

import "maps"

// podmanRunFlags returns flags of podman's and nerdctl's run that docker's doesn't have and berth run neither.
func podmanRunFlags() map[string]string {
	const (
		users    = "tasks have the host's users; -u $(id -u):$(id -g) runs the command as the caller"
		registry = "plain HTTP and authorities of a registry are set in /etc/containerd/certs.d/REGISTRY/hosts.toml"
		platform = "--platform linux/arm64 chooses among the images of an index"
		digests  = "digests are always checked; IMAGE@sha256:… names one"
		store    = "berth keeps unpacked layers, and makes roots of them by overlayfs"
		files    = "-v FILE:DST:ro brings a file in, /etc/hosts and /etc/passwd too"
	)
	return map[string]string{
		"replace": "berth rm -f NAME && berth run … removes the task of that name first",
		"pod":     "tasks share the host's network; --gang FILE starts different ones that share a network of their own",
		"uidmap":  users, "gidmap": users, "subuidname": users, "subgidname": users,
		"tls-verify": registry, "insecure-registry": registry,
		"authfile": "REGISTRY_AUTH_FILE=FILE berth run … reads credentials there", "creds": "berth login REGISTRY logs in",
		"arch": platform, "os": platform, "variant": platform,
		"env-host": "-e NAME passes a variable on", "http-proxy": "-e HTTPS_PROXY passes a variable on",
		"secret":   "-v FILE:/run/secrets/NAME:ro brings a file in, -e NAME a variable",
		"systemd":  "berth prepares no task for systemd; --init reaps what the command leaves",
		"tz":       "-v /etc/localtime:/etc/localtime:ro brings in the host's time zone, -e TZ=Europe/Berlin sets another",
		"umask":    "sh -c 'umask 027; exec COMMAND' sets it",
		"rootfs":   "isn't needed: a directory is an image, as in berth run ./DIR COMMAND",
		"no-hosts": files, "no-hostname": files, "passwd": files, "passwd-entry": files, "group-entry": files,
		"hooks-dir":       "isn't needed: --gpus 1 brings what NVIDIA's hook did",
		"read-only-tmpfs": "--tmpfs /tmp mounts empty memory",
		"image-volume":    "what an image declares as a volume is a part of the task's root",
		"requires":        "berth wait TASK && berth run … starts one task after another",
		"cgroups":         "a task always has a cgroup: device rules are on it",
		"snapshotter":     store, "verify": digests, "cosign-key": digests,
	}
}

// globalFlags returns flags that other tools have before their verbs, and berth has not.
func globalFlags() map[string]string {
	const (
		daemon  = "berth has no daemon to connect to: it works on this server"
		debug   = "errors say what has failed, berth doctor checks the server, and events.log in berth's data directory has what happened"
		storage = "state and data in /etc/berth/config.toml are where berth keeps tasks and images"
	)
	return map[string]string{
		"host": daemon, "H": daemon, "context": daemon, "c": daemon, "tls": daemon, "tlsverify": daemon, "tlscacert": daemon, "tlscert": daemon, "tlskey": daemon,
		"remote": daemon, "r": daemon, "url": daemon, "connection": daemon, "address": daemon, "a": daemon,
		"debug": debug, "D": debug, "d": debug, "log-level": debug, "l": debug, "verbose": debug, "quiet": debug, "q": debug, "silent": debug, "s": debug,
		"namespace": "tasks are in one list for the whole server", "n": "tasks are in one list for the whole server",
		"root": storage, "runroot": storage, "data-root": storage, "storage-driver": storage, "storage-opt": storage, "snapshotter": storage,
		"cgroup-manager": "isn't needed: berth makes cgroups itself, below /berth",
		"runtime":        "berth run --runtime crun takes that OCI runtime once, and runtime in /etc/berth/config.toml always",
		"hooks-dir":      "isn't needed: berth run --gpus 1 brings what NVIDIA's hook did",
		"nocolor":        "NO_COLOR=1 before berth turns colours off",
	}
}

// otherFlags returns flags of podman, Apptainer and nvidia-smi for other verbs, which neither docker nor berth has.
func otherFlags(verb string) map[string]string {
	const all, latest = "berth ps -aq lists all: ", "berth ps -lq is the latest: "
	common := map[string]string{}
	switch verb {
	case "rm", "stop", "kill", "wait":
		common = map[string]string{
			"all": all + "berth " + verb + " $(berth ps -aq)", "a": all + "berth " + verb + " $(berth ps -aq)",
			"latest": latest + "berth " + verb + " $(berth ps -lq)", "l": latest + "berth " + verb + " $(berth ps -lq)",
		}
	case "logs", "exec", "inspect", "attach":
		common = map[string]string{
			"latest": latest + "berth " + verb + " $(berth ps -lq)", "l": latest + "berth " + verb + " $(berth ps -lq)",
		}
		switch verb {
		case "exec":
			const given = "a task has what berth run gave it; another berth run starts one with more"
			maps.Copy(common, map[string]string{"gpus": given, "volume": given, "v": given, "device": given, "mount": given})
		case "inspect":
			const labels = "berth images --json has an image's labels"
			maps.Copy(common, map[string]string{"labels": labels, "runscript": labels, "r": labels, "deffile": labels, "d": labels})
		}
	case "rmi":
		common = map[string]string{"all": "berth prune --all removes what no task uses", "a": "berth prune --all removes what no task uses"}
	case "pull", "login", "logout":
		for _, name := range []string{"tls-verify", "insecure-registry", "authfile", "creds"} {
			common[name] = podmanRunFlags()[name]
		}
		if verb == "pull" {
			maps.Copy(common, map[string]string{"arch": podmanRunFlags()["arch"], "os": podmanRunFlags()["os"]})
			maps.Copy(common, pullFlags())
		}
	case "ps", "images":
		common = map[string]string{"sort": "--format and sort(1) put lines into an order: berth " + verb + " --format '{{.Size}} {{.ID}}' | sort -h"}
	case "gpus": // as of nvidia-smi
		common = map[string]string{
			"L": "berth gpus --no-trunc shows UUIDs in full", "l": "berth gpus --watch=1 repeats every second", "loop": "berth gpus --watch=1 repeats every second",
			"q": "berth gpus --json prints all that is known", "query-gpu": "berth gpus --format '{{.GPU}} {{.Used}} {{.Util}}' prints what a template says",
		}
	case "topo":
		common = map[string]string{"m": "isn't needed: berth topo prints the matrix"}
	}
	return common
}
