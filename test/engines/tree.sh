#!/bin/sh
# Makes the root file system of a Debian suite with container engines and runtimes:
#
#   tree.sh forky      .cache/engines/forky: docker, containerd, podman, runc, crun, all of them new
#   tree.sh bookworm   .cache/engines/bookworm: those of Debian 12, whose docker knows no CDI
#   tree.sh users      .cache/engines/users: as forky, and the ways in which people without root come
#                      to a server and start containers there: sshd, cron, at, bubblewrap, Apptainer, which
#                      mounts images with squashfuse, fuse-overlayfs and fuse2fs
#   tree.sh slurm-forky
#                      .cache/engines/slurm-forky: Slurm, munge, MPI programs with PMIx, Apptainer, and what it mounts
#                      images with, but no engines; slurm-trixie and slurm-bookworm are the same with earlier versions
#
# with systemd, which a host may boot, catatonit, which podman's pods wait in, rpm, and AppArmor's parser: 4.1 and 3.0
#
# and prints its path. Nothing is made again while the recipe is the same. Needs root
# on Debian; the packages come from where the machine's own come from.
set -eu

die() { echo "tree.sh: $*" >&2; exit 1; }

tree=${1-}
packages=runc,crun,containerd,docker.io,podman,conmon,catatonit,tini,busybox-static,systemd-sysv,dbus,mount,apparmor
suite=$tree
more= # a suite for packages that the first lacks
case $tree in
forky) packages=$packages,docker-cli,docker-compose,rpm ;;
bookworm) ;;
users)
	suite=forky more=sid # which alone has Apptainer
	packages=$packages,docker-cli,passwd,openssh-server,openssh-client,cron,at,bubblewrap,charliecloud,uidmap,libpam-systemd,dbus-user-session,tzdata,squashfuse,fuse-overlayfs,fuse2fs,e2fsprogs,apptainer
	;;
slurm-forky | slurm-trixie | slurm-bookworm)
	suite=${tree#slurm-} more=sid # which alone has Apptainer
	packages=tini,busybox-static,mount,passwd,procps,iproute2,tzdata,munge,slurm-wlm,charliecloud,python3-mpi4py,uidmap,squashfuse,fuse-overlayfs,fuse2fs,apptainer
	;;
*) die "usage: tree.sh forky|bookworm|users|slurm-forky|slurm-trixie|slurm-bookworm" ;;
esac

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/engines
mkdir -p "$cache"
# One at a time: tests of several packages may come here first.
exec 9>"$cache/.lock"
flock 9

recipe=$(sha256sum <"$here/tree.sh" | cut -d' ' -f1)
if [ "$(cat "$cache/$tree.recipe" 2>/dev/null)" = "$recipe" ]; then
	echo "$cache/$tree"
	exit 0
fi
[ "$(id -u)" = 0 ] || die "making a root file system of $tree needs root"
command -v mmdebstrap >/dev/null || die "please install mmdebstrap (make deps)"
archive=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/*$') ||
	die "no Debian archive among apt's sources: engines of $tree can't be fetched"

echo "making the root file system $tree with engines (about half a minute)" >&2
rm -f "$cache/$tree.recipe"
make_tree() {
	rm -rf "$cache/$tree"
	set -- # apt's sources
	for name in $suite $more; do
		set -- "$@" "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $name main"
	done
	# What a mirror serves may be older than its Release file says is good.
	mmdebstrap --quiet --mode=root --variant=apt --include="$packages" \
		--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
		${more:+--aptopt="APT::Default-Release \"$suite\""} "$suite" "$cache/$tree" "$@" \
		>"$cache/$tree.log" 2>&1 9>&-
}
if ! make_tree; then
	# Unstable packages can't be installed at times: then the tests go on without them, and say so.
	{ [ -n "$more" ] && more= packages=${packages%,apptainer} && make_tree; } ||
		die "engines of $tree can't be fetched: $(grep '^E: ' "$cache/$tree.log" | head -n 1) ($cache/$tree.log has more)"
fi
printf '%s\n' "$recipe" >"$cache/$tree.recipe"
echo "$cache/$tree"
