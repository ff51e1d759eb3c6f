#!/bin/sh
# Makes the root file system of a Debian with all that berth is measured beside, and
# prints its path: .cache/bench/tree. It has the container engines of forky, the
# programs that handle images and a registry, and of sid apptainer, which no other
# suite has.
#
# Nothing is made again while the recipe is the same. Needs root on Debian; the
# packages come from where the machine's own come from.
set -eu

die() { echo "tree.sh: $*" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/bench
mkdir -p "$cache"
exec 9>"$cache/.lock"
flock 9

recipe=$(sha256sum <"$here/tree.sh" | cut -d' ' -f1)
if [ "$(cat "$cache/tree.recipe" 2>/dev/null)" = "$recipe" ]; then
	echo "$cache/tree"
	exit 0
fi
[ "$(id -u)" = 0 ] || die "making a root file system needs root"
command -v mmdebstrap >/dev/null || die "please install mmdebstrap (make deps)"
archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/*$') ||
	die "no Debian archive among apt's sources: engines can't be fetched"

echo "making a root file system with engines to measure beside (about half a minute)" >&2
rm -rf "$cache/tree" "$cache/tree.recipe"
key=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
# What a mirror serves may be older than its Release file says is good.
mmdebstrap --quiet --mode=root --variant=apt \
	--include=runc,crun,containerd,docker.io,docker-cli,podman,conmon,tini,busybox-static,skopeo,umoci,docker-registry,apptainer,tzdata \
	--aptopt='APT::Default-Release "forky"' \
	--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
	forky "$cache/tree" "deb [$key] $archive forky main" "deb [$key] $archive sid main" \
	>"$cache/tree.log" 2>&1 9>&- ||
	die "engines can't be fetched: $(grep '^E: ' "$cache/tree.log" | head -n 1) ($cache/tree.log has more)"
printf '%s\n' "$recipe" >"$cache/tree.recipe"
echo "$cache/tree"
