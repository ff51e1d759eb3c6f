package everyday

// Files of a task.
var fileUses = []use{
	{name: "a directory of the host", script: `mkdir data; echo in >data/a; docker run --rm -v "$PWD/data:/data" $box sh -c 'cat /data/a; echo out >/data/b'; cat data/b; stat -c %u data/b`},
	{name: "a directory of the host, from here", script: `mkdir data; docker run --rm -v ./data:/data $box touch /data/here; ls data`},
	{name: "a directory to read from", script: `mkdir data; echo in >data/a; docker run --rm -v "$PWD/data:/data:ro" $box sh -c 'cat /data/a; echo out >/data/b'; ls data`},
	{name: "a file of the host", script: `echo text >file; docker run --rm -v "$PWD/file:/etc/conf" $box cat /etc/conf`},
	{
		name: "a directory that isn't there", script: `docker run --rm -v "$PWD/absent:/data" $box ls -A /data; ls`,
		differs: "docker makes a directory for what is mostly a slip of the pen",
	},
	{name: "a mount that isn't there", script: `docker run --rm --mount type=bind,src="$PWD/absent",dst=/data $box true`},
	{
		name: "a volume with a name", script: `docker run --rm -v things:/data $box true; code=$?; docker volume rm things >/dev/null 2>&1; exit $code`,
		differs: "berth has no volumes with names: a directory of the host is easier to find, to back up and to remove",
	},
	{name: "a mount", script: `mkdir data; touch data/a; docker run --rm --mount type=bind,source="$PWD/data",target=/data,readonly $box sh -c 'ls /data; touch /data/b'`},
	{name: "memory for files", script: `docker run --rm --tmpfs /scratch:size=1m $box sh -c 'df -k /scratch | tail -n 1 | awk "{print \$2}"; head -c 2000000 /dev/zero >/scratch/a'`},
	{name: "memory for files, as a mount", script: `docker run --rm --mount type=tmpfs,dst=/scratch,tmpfs-size=1m,tmpfs-mode=1770 $box stat -c %a /scratch`},
	{name: "a root that is read-only", script: `docker run --rm --read-only --tmpfs /tmp $box sh -c 'touch /tmp/a && echo there; touch /a'`},
	{name: "files that nobody keeps", script: `docker run --rm $box touch /a; docker run --rm $box ls /a`},
	{name: "shared memory", script: `docker run --rm --shm-size 8m $box sh -c 'df -k /dev/shm | tail -n 1 | awk "{print \$2}"'`},
	{
		name: "the usual shared memory", script: `docker run --rm $box sh -c '[ $(df -k /dev/shm | tail -n 1 | awk "{print \$2}") -gt 65536 ] && echo more than 64 MiB'`,
		differs: "loaders of training data share more than 64 MiB, and end with a bus error there",
	},
	{name: "the usual nodes", script: `docker run --rm $box ls /dev`},
	{name: "the kernel's parameters", script: `docker run --rm $box sh -c 'echo 1 >/proc/sys/kernel/printk'`},
}

// Limits and permissions of a task.
var limitUses = []use{
	{name: "memory", script: `docker run --rm -m 64m $box cat /sys/fs/cgroup/memory/memory.limit_in_bytes`},
	{
		name: "more than the memory", script: `docker run --rm -m 16m $box sh -c 'tail /dev/zero'`,
		differs: "berth says why the task was killed",
	},
	{name: "memory that makes no sense", script: `docker run --rm -m lots $box true`},
	{name: "half a CPU", script: `docker run --rm --cpus 0.5 $box sh -c 'cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu/cpu.cfs_period_us'`},
	{name: "a share of the CPUs", script: `docker run --rm --cpu-shares 512 $box cat /sys/fs/cgroup/cpu/cpu.shares`},
	{name: "one of the CPUs", script: `docker run --rm --cpuset-cpus 0 $box nproc`},
	{name: "processes", script: `docker run --rm --pids-limit 20 $box cat /sys/fs/cgroup/pids/pids.max`},
	{name: "open files", script: `docker run --rm --ulimit nofile=100:200 $box sh -c 'ulimit -n; ulimit -Hn'`},
	{name: "core files", script: `docker run --rm --ulimit core=0 $box sh -c 'ulimit -c'`},
	{name: "a limit that isn't there", script: `docker run --rm --ulimit colour=1 $box true`},
	{name: "who ends first", script: `docker run --rm --oom-score-adj 500 $box cat /proc/self/oom_score_adj`},
	{name: "no capabilities", script: `docker run --rm --cap-drop ALL $box grep CapEff /proc/self/status`},
	{name: "no capabilities but one", script: `docker run --rm --cap-drop all --cap-add chown $box grep CapEff /proc/self/status`},
	{name: "one capability more", script: `docker run --rm --cap-drop MKNOD --cap-add NET_ADMIN --cap-add NET_RAW $box grep CapEff /proc/self/status`},
	{name: "a capability that isn't there", script: `docker run --rm --cap-add FLY $box true`},
	{
		name: "the usual capabilities", script: `docker run --rm $box grep CapEff /proc/self/status`,
		differs: "devices come with a lease: a task can't make nodes; and it sees no raw packets of the host's network without --cap-add NET_RAW",
	},
	{
		name: "set-uid programs", script: `docker run --rm $box grep NoNewPrivs /proc/self/status`,
		differs: "they gain nothing, unless --security-opt no-new-privileges=false says so",
	},
	{name: "no set-uid programs", script: `docker run --rm --security-opt no-new-privileges $box grep NoNewPrivs /proc/self/status`},
	{name: "the filter of system calls", script: `docker run --rm $box grep Seccomp: /proc/self/status; docker run --rm $box unshare -U true 2>/dev/null || echo refused`},
	{name: "a parameter of the kernel", script: `docker run --rm --sysctl kernel.msgmax=9999 $box cat /proc/sys/kernel/msgmax`},
	{
		name: "a privileged task's devices", script: `docker run --rm --privileged $box ls /dev | grep -c '^nvidia[0-9]'`,
		differs: "no device comes with --privileged: GPUs are leased",
	},
}

// Devices of a task.
var deviceUses = []use{
	{name: "two GPUs", script: `docker run --rm --device berth/gpus=2 $box ls /dev | grep -c '^nvidia[0-9]'`},
	{name: "more GPUs than there are", script: `docker run --rm --device berth/gpus=9 $box true; [ $? != 0 ] && echo refused`},
	{name: "a device that nobody knows", script: `docker run --rm --device vendor.example/none=1 $box true`},
	{
		name: "a node by its path", script: `docker run --rm --device /dev/fuse $box ls /dev/fuse`,
		differs: "a node that one task opens, others may have: what can be leased has a name",
	},
	{
		name: "docker's own GPUs", script: `docker run --rm --gpus 1 $box ls /dev | grep -c '^nvidia[0-9]'`,
		differs: "docker alone doesn't know of GPUs; berth setup docker tells it",
	},
}
