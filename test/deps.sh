#!/bin/sh
# Installs the programs that berth's build, demo and tests need and that aren't
# there yet; with PACKAGES=1 those of make package too. As root on Debian it does so
# itself; elsewhere it says what to install.
set -eu

missing=
need() { # program, Debian package
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need runc runc
need crun crun
need catatonit catatonit
need cc gcc
need mmdebstrap mmdebstrap
need busybox busybox-static
need tmux tmux
need podman podman
need skopeo skopeo
need docker-registry docker-registry
need unshare util-linux
need ip iproute2
need iptables-nft iptables
need sysctl procps
need mkfs.xfs xfsprogs # file systems of test/faults
need mkfs.btrfs btrfs-progs
need bindfs bindfs
need newuidmap uidmap
need strace strace
need mksquashfs squashfs-tools # SIF images of the tests
need squashfuse_ll squashfuse
need fuse2fs fuse2fs # overlays in files
need fuse-overlayfs fuse-overlayfs
need zsh zsh # whose completions are tried
need fish fish
# make package alone cross-compiles.
if [ -n "${PACKAGES-}" ]; then
	need x86_64-linux-gnu-gcc gcc
	need aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
fi
# Root file systems come from where the machine's packages do, which apt knows by its lists.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 && [ -z "$(apt-get indextargets --format x)" ]; then
	echo "deps: reading apt's lists" >&2
	apt-get -qq update >&2 || true # one of its sources may be broken
fi
echo '#include <dlfcn.h>' | cc -E - >/dev/null 2>&1 || missing="$missing libc6-dev"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	echo "deps: please install:$missing" >&2
	exit 1
fi
echo "deps: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt-get update >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
# shellcheck disable=SC2086
apt-get install -y --no-install-recommends $missing >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
