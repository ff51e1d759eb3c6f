package run

import (
	"slices"

	"github.com/urfave/cli/v2"
)

// runFlags returns the flags about a container, by docker's names.
func runFlags() []cli.Flag {
	return slices.Concat(
		inCategory("Devices", deviceFlags()), inCategory("Process", processFlags()), inCategory("Files", fileFlags()),
		inCategory("Limits", limitFlags()), inCategory("Isolation", securityFlags()), inCategory("Names and network", nameFlags()),
	)
}

func deviceFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "gpus", Aliases: []string{"G"}, Usage: "lease what `REQUEST` says"},
		&cli.StringFlag{Name: "nics", Usage: "lease RDMA NICs: `WHICH` is auto (near the GPUs), a number, names (mlx5_0+mlx5_3), or none (default: none; auto for --network rdma)"},
		&cli.StringSliceFlag{Name: "device", Usage: "lease a device by its `CDI` name, such as berth/gpus=2; can be repeated"},
	}
}

func processFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "entrypoint", Usage: "start with `PROGRAM` in place of the image's entrypoint; \"\" is none"},
		&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "set `NAME=VALUE`, or pass NAME on; can be repeated"},
		&cli.StringSliceFlag{Name: "env-file", Usage: "set what the lines of `FILE` say; --env wins; can be repeated", TakesFile: true},
		&cli.StringFlag{Name: "workdir", Aliases: []string{"w"}, Usage: "start in `DIR`"},
		&cli.StringFlag{Name: "user", Aliases: []string{"u"}, Usage: "run as `USER[:GROUP]`, names of the image or numbers"},
		&cli.StringSliceFlag{Name: "group-add", Usage: "run in `GROUP` too; can be repeated"},
		&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "give the container a terminal"},
		&cli.BoolFlag{Name: "interactive", Aliases: []string{"i"}, Usage: "connect standard input"},
		&cli.BoolFlag{Name: "init", Usage: "have a small first process pass on signals and reap what the command leaves"},
		&cli.StringFlag{Name: "stop-signal", Usage: "ask the task to end with `SIGNAL` (default: the image's, or TERM)"},
		&cli.StringFlag{Name: "stop-timeout", Usage: "`SECONDS` between stop signal and SIGKILL (default: 10); -1 is for ever"},
		&cli.BoolFlag{Name: "mpi", Usage: "be a rank of the mpirun or srun that starts this"},
		&cli.StringFlag{Name: "runtime", Usage: "run with the OCI runtime `PROGRAM`: crun, runc, or a path"},
	}
}

func fileFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "volume", Aliases: []string{"v"}, Usage: "bind `SRC:DST[:ro]`; can be repeated"},
		&cli.StringSliceFlag{Name: "mount", Usage: "mount `type=bind,src=SRC,dst=DST[,ro]` or type=tmpfs,dst=DST[,tmpfs-size=SIZE]; can be repeated"},
		&cli.StringSliceFlag{Name: "tmpfs", Usage: "mount empty memory at `DST[:size=SIZE,…]`; can be repeated"},
		&cli.BoolFlag{Name: "read-only", Usage: "make the root file system read-only"},
		&cli.BoolFlag{Name: "rw", Usage: "write to the image itself, which must be a directory"},
		&cli.StringSliceFlag{Name: "storage-opt", Usage: "bound what the task writes to its root: size=`SIZE`, on ext4 and XFS with project quotas"},
		&cli.StringFlag{Name: "shm-size", Usage: "`SIZE` of /dev/shm (default: half of the memory)"},
		&cli.StringFlag{Name: "cidfile", Usage: "write the task's id to `FILE`, which must not exist", TakesFile: true},
	}
}

func limitFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "memory", Aliases: []string{"m"}, Usage: "at most `SIZE` of memory, such as 512m or 64g"},
		&cli.StringFlag{Name: "memory-swap", Usage: "at most `SIZE` of memory and swap together; -1 is no limit"},
		&cli.StringFlag{Name: "memory-reservation", Usage: "`SIZE` of memory that the task keeps when it runs short"},
		&cli.StringFlag{Name: "cpus", Usage: "at most the time of `N` CPUs, such as 1.5"},
		&cli.StringFlag{Name: "cpuset-cpus", Usage: "run on the CPUs of `LIST`, such as 0-3,8 (default: near the GPUs)"},
		&cli.StringFlag{Name: "cpuset-mems", Usage: "take memory of the NUMA nodes of `LIST`"},
		&cli.StringFlag{Name: "cpu-shares", Aliases: []string{"c"}, Usage: "`WEIGHT` among others that want the same CPUs (default: 1024)"},
		&cli.StringFlag{Name: "pids-limit", Usage: "at most `N` processes and threads; -1 is no limit"},
		&cli.StringSliceFlag{Name: "ulimit", Usage: "limit each process: `NAME=SOFT[:HARD]`, such as nofile=1024:2048 or memlock=-1; can be repeated"},
		&cli.StringFlag{Name: "oom-score-adj", Usage: "OOM score adjustment `N`, -1000 to 1000"},
	}
}

func securityFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "cap-add", Usage: "add the capability `CAP`, or ALL that keep device isolation intact; can be repeated"},
		&cli.StringSliceFlag{Name: "cap-drop", Usage: "take away the capability `CAP`, or ALL; can be repeated"},
		&cli.BoolFlag{Name: "privileged", Usage: "add all capabilities that keep device isolation intact, and unmask /proc and /sys; adds no device"},
		&cli.StringSliceFlag{Name: "security-opt", Usage: "`OPTION` is no-new-privileges[=false], seccomp=FILE|unconfined or apparmor=NAME|unconfined; can be repeated"},
		&cli.StringFlag{Name: "ipc", Usage: "IPC namespace `WHICH`: private or host", Value: "private"},
		&cli.StringFlag{Name: "pid", Usage: "PID namespace `WHICH`: private", Value: "private"},
		&cli.StringFlag{Name: "uts", Usage: "UTS namespace `WHICH`: private or host", Value: "private"},
		&cli.StringFlag{Name: "userns", Usage: "user namespace `WHICH`: host", Value: "host"},
		&cli.StringFlag{Name: "cgroupns", Usage: "cgroup namespace `WHICH`: private (the default on cgroup v2) or host"},
		&cli.StringSliceFlag{Name: "sysctl", Usage: "set a kernel parameter of the task's own, `NAME=VALUE`; can be repeated"},
	}
}

func nameFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "name", Usage: "`NAME` for people, also the hostname"},
		&cli.StringFlag{Name: "hostname", Usage: "the container's own `NAME` (default: that of --name)"},
		&cli.StringFlag{Name: "domainname", Usage: "the container's NIS domain `NAME`"},
		&cli.StringFlag{Name: "network", Aliases: []string{"net"}, Usage: "`NETWORK` is host or none; for a gang private, rdma, none or host (default: host; private for a gang of root)"},
		&cli.StringSliceFlag{Name: "publish", Aliases: []string{"p"}, Usage: "the task listens on `PORT[:PORT]`, which is the host's port as well; can be repeated"},
		&cli.StringSliceFlag{Name: "add-host", Usage: "add `NAME:ADDRESS` to /etc/hosts; can be repeated"},
		&cli.StringSliceFlag{Name: "dns", Usage: "ask the name server `ADDRESS` in place of the host's; can be repeated"},
		&cli.StringSliceFlag{Name: "dns-search", Usage: "search names in `DOMAIN`; can be repeated"},
		&cli.StringSliceFlag{Name: "dns-option", Aliases: []string{"dns-opt"}, Usage: "give the resolver an `OPTION` of resolv.conf; can be repeated"},
		&cli.StringSliceFlag{Name: "label", Aliases: []string{"l"}, Usage: "label the task `NAME=VALUE`; can be repeated"},
		&cli.StringSliceFlag{Name: "label-file", Usage: "label the task with the lines of `FILE`; can be repeated", TakesFile: true},
		&cli.StringSliceFlag{Name: "annotation", Usage: "put `NAME=VALUE` into the container's spec; can be repeated"},
	}
}

// inCategory puts flags under a heading of the help.
func inCategory(heading string, flags []cli.Flag) []cli.Flag {
	for _, f := range flags {
		switch f := f.(type) {
		case *cli.StringFlag:
			f.Category = heading
		case *cli.StringSliceFlag:
			f.Category = heading
		case *cli.BoolFlag:
			f.Category = heading
		case *cli.IntFlag:
			f.Category = heading
		case *cli.GenericFlag:
			f.Category = heading
		case *cli.DurationFlag:
			f.Category = heading
		}
	}
	return flags
}
