#!/bin/sh
# boot_machine.sh TREE DIR [WORD]...: starts the kernel of the tree on the machine's own files, which it only reads, with DIR/init as
# its first process. The words are for the kernel. The machine has one processor, only cgroup version 2, with the controllers cpu,
# io, memory and pids, and no network. The script mounts, so it needs a mount namespace of its own: unshare --mount boot_machine.sh.
set -eu
tree=$1 dir=$2
shift 2
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$tree/machine"
mount --make-rprivate /
mount -t proc proc "$tree/proc"
mount --bind /dev "$tree/dev"
mount -t tmpfs tmpfs "$tree/tmp"
mount --rbind / "$tree/machine"
export HOME=/tmp TMPDIR=/tmp
# What the kernel doesn't know of these words is its first process's environment.
exec setarch -R chroot "$tree" linux.uml mem=1G rootfstype=hostfs rootflags=/machine ro quiet con=null con0=null,fd:1 \
	init="$dir/init" modules="$(readlink -f "$tree")/usr/lib/uml/modules" dir="$dir" here="$here" "$@"
