#!/bin/sh
# Makes the root file system that the gangs of these tests run: Debian 12 with PyTorch
# (gloo), numpy, Open MPI and a compiled all-reduce. It prints the directory,
#
#   .cache/gangs/root
#
# and makes nothing again while the recipe is the same. Needs root on Debian; the packages
# come from where the machine's own come from.
set -eu

die() { echo "test/gangs/root.sh: $*" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/gangs
mkdir -p "$cache"
# One at a time: tests of several packages may come here first.
exec 9>"$cache/.lock"
flock 9

recipe=$(cat "$here/root.sh" "$here/testdata/allreduce.c" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$cache/root.recipe" 2>/dev/null)" = "$recipe" ]; then
	echo "$cache/root"
	exit 0
fi
[ "$(id -u)" = 0 ] || die "making the root file system needs root"
for tool in mmdebstrap cc; do
	command -v $tool >/dev/null || die "please install $tool (make deps)"
done
archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/*$') ||
	die "no Debian archive among apt's sources"

echo "making a root file system with PyTorch and Open MPI (about two minutes)" >&2
rm -rf "$cache/root" "$cache/root.recipe" "$cache/dev"
# What a mirror serves may be older than its Release file says is good.
mmdebstrap --mode=root --variant=apt \
	--include=python3-minimal,python3-torch,python3-numpy,openmpi-bin,iproute2 \
	--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
	--aptopt='APT::Install-Recommends "false"' \
	--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
	--dpkgopt='path-exclude=/usr/include/*' --dpkgopt='path-exclude=/usr/lib/*/*.a' \
	--customize-hook='cd "$1/tmp" && chroot "$1" sh -c "cd /tmp && apt-get -qq download libopenmpi-dev"' \
	--customize-hook="mv \"\$1\"/tmp/libopenmpi-dev_*.deb '$cache/dev.deb'" \
	bookworm "$cache/root" \
	"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive bookworm main" \
	>"$cache/root.log" 2>&1 9>&- ||
	die "it can't be made: $(grep '^E: ' "$cache/root.log" | head -n 1) ($cache/root.log has more)"

# The headers alone are wanted of the development package, and they needn't be inside.
dpkg-deb -x "$cache/dev.deb" "$cache/dev"
lib=$(echo "$cache/root"/usr/lib/*-linux-gnu)
cc -O1 -I "$(dirname "$(find "$cache/dev" -name mpi.h | head -n 1)")" -o "$cache/root/usr/local/bin/allreduce" \
	"$here/testdata/allreduce.c" "$lib/libmpi.so.40" -Wl,--allow-shlib-undefined -Wl,-rpath-link,"$lib"
rm -rf "$cache/dev" "$cache/dev.deb" "$cache/root"/var/cache/apt/*.bin "$cache/root"/var/lib/apt/lists/*_*
printf '%s\n' "$recipe" >"$cache/root.recipe"
echo "$cache/root"
