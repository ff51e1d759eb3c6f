#!/bin/sh
# Becomes the first process of a simulated GPU server whose root file system is TREE:
#
#   host.sh TREE v1|v2 CGROUP SIMNODE SOURCE SHARE [systemd]
#
# Call it in new mount, PID, network, UTS and IPC namespaces. It says "ready" when all
# is there, and lives until its standard input ends; everything that was started
# inside ends with it. TREE stays as it is: what is written goes to memory.
#
# CGROUP is the name of the cgroup that the server takes for the root: in a server
# there is nothing above. SIMNODE is the program of test/simnode, SOURCE the source
# tree, for its cache, SHARE a directory that is the same on both sides. With systemd
# the tree's own init is the first process, and what it starts at boot is there.
set -eu

if [ "${1-}" != inside ]; then
	# What stays of the cgroups is for the caller to remove.
	for dir in /sys/fs/cgroup /sys/fs/cgroup/*/; do
		[ -e "$dir/cgroup.procs" ] || continue
		mkdir -p "$dir/$3"
		if [ -e "$dir/cpuset.cpus" ]; then
			cat "$dir/cpuset.cpus" >"$dir/$3/cpuset.cpus"
			cat "$dir/cpuset.mems" >"$dir/$3/cpuset.mems"
		fi
		echo 0 >"$dir/$3/cgroup.procs"
	done
	exec unshare --cgroup -- "$0" inside "$@"
fi
tree=$2 version=$3 simnode=$5 source=$6 share=$7

mount --make-rprivate /
# /mnt is this namespace's own: nothing is seen outside.
mount -t tmpfs -o mode=755 tmpfs /mnt
root=/mnt/root
mkdir -p /mnt/upper /mnt/work $root
mount -t overlay -o "lowerdir=$tree,upperdir=/mnt/upper,workdir=/mnt/work" overlay $root

mount -t proc proc $root/proc
mount -t sysfs sysfs $root/sys
mount -t tmpfs -o mode=755 tmpfs $root/run
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
mount -t tmpfs -o mode=755,nosuid tmpfs $root/dev
for node in null zero full random urandom tty fuse; do
	[ -e /dev/$node ] && cp -a /dev/$node $root/dev
done
mkdir $root/dev/net $root/dev/pts $root/dev/shm
[ -e /dev/net/tun ] && cp -a /dev/net/tun $root/dev/net
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm

if [ "$version" = v2 ]; then
	mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
else
	mount -t tmpfs -o mode=755 tmpfs $root/sys/fs/cgroup
	sed -n 's/^[0-9]*:\([a-z_,]*\):.*/\1/p; s/^[0-9]*:name=\([^:]*\):.*/name=\1/p' /proc/self/cgroup | while read -r name; do
		[ -n "$name" ] || continue
		dir=$root/sys/fs/cgroup/${name#name=}
		case $name in name=*) name=none,$name ;; esac
		mkdir -p "$dir"
		mount -t cgroup -o "$name" cgroup "$dir"
	done
fi

# simnode finds its cache by the file go.mod above its working directory.
mkdir -p "$root/src/.cache/simnode" "$root$share"
cp "$source/go.mod" $root/src
mount --bind "$source/.cache/simnode" $root/src/.cache/simnode
mount --rbind "$share" "$root$share"
cp "$simnode" $root/src/simnode

cd $root
mkdir mnt/old
pivot_root . mnt/old
busybox umount -l /mnt/old
busybox ip link set lo up
cd /src
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
simulate="./simnode -profile dgx-h100 -cgroup $version -driver stub --"
if [ "${8-}" = systemd ]; then
	# What a namespace can't mount it isn't asked to.
	masks=
	for unit in dev-hugepages dev-mqueue sys-fs-fuse-connections sys-kernel-debug sys-kernel-tracing; do
		masks="$masks systemd.mask=$unit.mount"
	done
	exec 3<&0
	{ cat <&3 >/dev/null; exec busybox reboot -f; } & # of these namespaces
	{
		# simnode gives it another mount namespace than this.
		until nsenter --mount --target 1 systemctl is-system-running --wait 2>/dev/null | grep -q 'running\|degraded'; do sleep 0.1; done
		echo ready
	} &
	exec env container=berth $simulate /sbin/init $masks </dev/null 3<&-
fi
# tini is a first process that waits for orphans.
exec $simulate tini -- sh -c 'cd /; echo ready; exec cat >/dev/null'
