#!/bin/sh
# Makes the images that the demo and the tests run, as OCI image layouts:
#
#   .cache/image/debian    Debian 12 with glibc, ldconfig and apt
#   .cache/image/busybox   one static program: no libc, no loader cache
#
# Nothing is made again while the recipe is the same. Needs root on Debian, for
# mmdebstrap makes the root file system as a package manager would.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=$root/.cache/image
GO=${GO:-go}

mkdir -p "$cache"
# One at a time: tests and demo may both come here first.
exec 9>"$cache/.lock"
flock 9

recipe=$(cat "$here"/make.sh "$here"/*.go "$here"/oci/*.go | sha256sum | cut -d' ' -f1)
made() { [ -f "$cache/$1/index.json" ] && [ "$(cat "$cache/$1.recipe" 2>/dev/null)" = "$recipe" ]; }
done_() { printf '%s\n' "$recipe" >"$cache/$1.recipe"; }

if made debian && made busybox; then
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	echo "test/image/make.sh: making the Debian image needs root" >&2
	exit 1
fi

# What a mirror serves may be older than its Release file says is good.
lenient='-o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false'
install() { # PACKAGE
	command -v apt-get >/dev/null || { echo "test/image/make.sh: please install $1" >&2; exit 1; }
	echo "installing $1" >&2
	# shellcheck disable=SC2086
	apt-get $lenient -qq update >&2 || true # other sources of the machine may be broken
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get $lenient -qq -y --no-install-recommends install "$1" >&2
}
# A busybox that isn't static runs in no root of its own.
static() { [ -x "$1" ] && ldd "$1" 2>&1 | grep -q 'not a dynamic executable\|statically linked'; }

work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
# GOFLAGS: the tree may have no version control.
(cd "$root" && $GO build -buildvcs=false -o "$work/image" ./test/image)

if ! made busybox; then
	busybox=$(command -v busybox || true)
	if ! static "$busybox"; then
		install busybox-static
		busybox=$(command -v busybox)
	fi
	"$work/image" -out "$cache/busybox" -tag latest -busybox "$busybox"
	done_ busybox
fi

if ! made debian; then
	command -v mmdebstrap >/dev/null || install mmdebstrap
	# The machine's own mirror, if it is a Debian machine with one.
	mirror=
	for f in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
		if [ -z "$mirror" ] && grep -qs 'bookworm' "$f"; then mirror=$f; fi
	done
	echo "making the Debian image (about half a minute)" >&2
	# Options given to apt stay in the image: apt works the same way inside.
	# shellcheck disable=SC2086
	SOURCE_DATE_EPOCH=1700000000 mmdebstrap --quiet --mode=root --variant=apt \
		--include=libc-bin \
		--aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
		bookworm "$work/debian.tar" $mirror
	"$work/image" -out "$cache/debian" -tag bookworm -cmd /bin/bash "$work/debian.tar"
	done_ debian
fi
