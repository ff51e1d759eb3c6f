#!/bin/sh
# boot.sh TREE DIR: starts the kernel of the tree with DIR/guest as its first process, and with
# DIR/ext4 and DIR/xfs, on which it makes file systems, as its disks. Its mounts are in a namespace of
# its own: unshare --mount boot.sh.
set -eu
tree=$1 dir=$2
mount -t proc proc "$tree/proc"
mount --bind /dev "$tree/dev"
mount -t tmpfs tmpfs "$tree/tmp"
mount --bind "$dir" "$tree/mnt"
truncate -s 64M "$dir/ext4"
truncate -s 320M "$dir/xfs"
chroot "$tree" mkfs.ext4 -q -O quota,project -E quotatype=prjquota /mnt/ext4
chroot "$tree" mkfs.xfs -q /mnt/xfs
export HOME=/tmp TMPDIR=/tmp
# The kernel counts a gap of address space randomisation as memory. What it doesn't know of these
# words is its first process's environment.
exec setarch -R chroot "$tree" linux.uml mem=256M ubd0=/mnt/ext4 ubd1=/mnt/xfs rootfstype=hostfs rootflags=/ ro \
	init=/mnt/guest con=null con0=null,fd:1 disk0=ext4 disk1=xfs
