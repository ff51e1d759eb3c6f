#!/bin/sh
# Makes .cache/uml: the files of Debian's kernel for user mode, which has project quotas, of its C
# library, and of the programs that make ext4 and XFS; and prints its path. Nothing is made again
# while the recipe is the same. Needs root on Debian; the packages come from where the machine's own
# come from.
set -eu

die() { echo "tree.sh: $*" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)/.cache/uml
mkdir -p "$tree"
exec 9>"$tree.lock"
flock 9

recipe=$(sha256sum <"$here/tree.sh" | cut -d' ' -f1)
if [ "$(cat "$tree.recipe" 2>/dev/null)" = "$recipe" ]; then
	echo "$tree"
	exit 0
fi
[ "$(id -u)" = 0 ] || die "making a root file system needs root"
command -v mmdebstrap >/dev/null || die "please install mmdebstrap (make deps)"
archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/*$') ||
	die "no Debian archive among apt's sources: a kernel for user mode can't be fetched"
rm -rf "$tree" "$tree.recipe"
# What a mirror serves may be older than its Release file says is good. Kernels before 6.14 don't run
# on processors with AMX.
mmdebstrap --quiet --mode=root --variant=extract --include=user-mode-linux,e2fsprogs,xfsprogs,apparmor \
	--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
	forky "$tree" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive forky main" \
	>"$tree.log" 2>&1 9>&- ||
	die "a kernel for user mode can't be fetched: $(grep '^E: ' "$tree.log" | head -n 1) ($tree.log has more)"
for dir in proc dev sys tmp mnt srv; do mkdir -p "$tree/$dir"; done
for dir in bin sbin lib lib64; do [ -e "$tree/$dir" ] || ln -s "usr/$dir" "$tree/$dir"; done
rm -rf "$tree/usr/share" "$tree"/usr/lib/uml/modules/*/kernel/drivers "$tree"/usr/lib/uml/modules/*/kernel/net
printf '%s\n' "$recipe" >"$tree.recipe"
echo "$tree"
