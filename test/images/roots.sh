#!/bin/sh
# Brings C libraries of several ages and kinds from Debian, unpacked, for the roots
# that these tests make:
#
#   .cache/image/roots/old     glibc 2.31, whose loader cache has the older format too
#   .cache/image/roots/new     the newest glibc
#   .cache/image/roots/i386    glibc 2.36 of 32 bits
#   .cache/image/roots/musl    musl
#
# apt gets a configuration of its own; the machine's is neither read, but for its
# mirror, nor changed. Nothing is brought again while this file is the same.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/image
mkdir -p "$cache"
exec 9>"$cache/.roots.lock"
flock 9

recipe=$(sha256sum <"$0")
[ "$(cat "$cache/roots.recipe" 2>/dev/null)" != "$recipe" ] || exit 0

mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 '/debian/*$')
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/roots"
key=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
cat >"$work/sources.list" <<END
deb [$key arch=amd64] $mirror bullseye main
deb [$key arch=amd64,i386] $mirror bookworm main
deb [$key arch=amd64] $mirror sid main
END

apt() {
	(cd "$work/archives" && apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
		-o Dir::State::lists="$work/lists" -o Dir::Cache="$work" -o Dir::State::status=/dev/null \
		-o APT::Sandbox::User=root -o APT::Architectures::=amd64 -o APT::Architectures::=i386 \
		-o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false -o Acquire::Retries=2 -o Acquire::Languages=none \
		-o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false \
		"$@" >&2)
}
bring() { # ROOT PACKAGE...
	root=$work/roots/$1
	shift
	apt download "$@"
	mkdir "$root"
	for deb in "$work"/archives/*.deb; do
		dpkg-deb -x "$deb" "$root"
		rm "$deb"
	done
}
echo "bringing C libraries (about a minute)" >&2
apt update
bring old libc6/bullseye libc-bin/bullseye
bring new libc6/sid libc-bin/sid
bring i386 libc6:i386/bookworm
bring musl musl/bookworm

rm -rf "$cache/roots"
mv "$work/roots" "$cache/roots"
printf '%s\n' "$recipe" >"$cache/roots.recipe"
