#!/bin/sh
# Makes the root file system of a Debian suite with container engines and runtimes:
#
#   tree.sh forky      .cache/engines/forky: docker, containerd, podman, runc, crun, all of them new
#   tree.sh bookworm   .cache/engines/bookworm: those of Debian 12, whose docker knows no CDI
#
# with systemd, which a host may boot, catatonit, which podman's pods wait in, rpm, and AppArmor's parser: 4.1 and 3.0
#
# and prints its path. Nothing is made again while the recipe is the same. Needs root
# on Debian; the packages come from where the machine's own come from.
set -eu

die() { echo "tree.sh: $*" >&2; exit 1; }

suite=${1-}
packages=runc,crun,containerd,docker.io,podman,conmon,catatonit,tini,busybox-static,systemd-sysv,dbus,mount,apparmor
case $suite in
forky) packages=$packages,docker-cli,docker-compose,rpm ;;
bookworm) ;;
*) die "usage: tree.sh forky|bookworm" ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/engines
mkdir -p "$cache"
# One at a time: tests of several packages may come here first.
exec 9>"$cache/.lock"
flock 9

recipe=$(sha256sum <"$here/tree.sh" | cut -d' ' -f1)
if [ "$(cat "$cache/$suite.recipe" 2>/dev/null)" = "$recipe" ]; then
	echo "$cache/$suite"
	exit 0
fi
[ "$(id -u)" = 0 ] || die "making a root file system of $suite needs root"
command -v mmdebstrap >/dev/null || die "please install mmdebstrap (make deps)"
archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/*$') ||
	die "no Debian archive among apt's sources: engines of $suite can't be fetched"

echo "making a root file system of $suite with engines (about half a minute)" >&2
rm -rf "$cache/$suite" "$cache/$suite.recipe"
# What a mirror serves may be older than its Release file says is good.
mmdebstrap --quiet --mode=root --variant=apt --include="$packages" \
	--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
	"$suite" "$cache/$suite" \
	"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main" \
	>"$cache/$suite.log" 2>&1 9>&- ||
	die "engines of $suite can't be fetched: $(grep '^E: ' "$cache/$suite.log" | head -n 1) ($cache/$suite.log has more)"
printf '%s\n' "$recipe" >"$cache/$suite.recipe"
echo "$cache/$suite"
