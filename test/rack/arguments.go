package rack

import "slices"

// Dockerd returns the arguments that start Docker in a host, without a network of its own.
func Dockerd(flags ...string) []string {
	return append([]string{"dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none"}, flags...)
}

// Podman returns podman's arguments up to its verb: a host that wasn't booted has neither a systemd
// nor a journal.
func Podman(words ...string) []string {
	return append([]string{"podman", "--cgroup-manager", "cgroupfs", "--events-backend", "none"}, words...)
}

// PodmanLimits returns flags of podman run: its default limits are higher than root may set on some
// machines, and its limit of processes needs a controller that not every machine has.
func PodmanLimits(flags ...string) []string {
	return slices.Concat([]string{"--cgroups=enabled", "--pids-limit=0", "--ulimit", "nofile=256:256", "--ulimit", "nproc=256:256"}, flags)
}
