#!/bin/sh
# Checks ledger.pml with spin: every state of each configuration, and that each mutant of the model fails.
# As root on Debian it installs spin and a C compiler; elsewhere it says what to install.
#
# A search takes at most 1,700 MiB. Two of the short searches run at the same time; the long ones run alone.
set -u
cd "$(dirname "$0")" || exit 1

command -v spin >/dev/null 2>&1 && command -v gcc >/dev/null 2>&1 || {
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
		echo 'model: please install: spin gcc libc6-dev' >&2
		exit 1
	fi
	echo 'model: installing spin' >&2
	{ apt-get -qq update || true; DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends spin gcc libc6-dev; } >/dev/null || exit 1
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# search NAME DEFINES builds and runs one search; its output is in $work/NAME/out.
search() {
	name=$1 && shift
	mkdir "$work/$name" && cp ledger.pml "$work/$name" && cd "$work/$name" || return 1
	spin "$@" -a ledger.pml >out 2>&1 && gcc "${OPTIMIZE:--O2}" -w -DSAFETY -DMEMLIM=1700 -DVECTORSZ=1024 -o pan pan.c >>out 2>&1 || return 1
	timeout 300 ./pan -n -w"${TABLE:-25}" -m4000000 >>out 2>&1
	rm -f pan.* pan
}

# holds NAME DEFINES: the search finds no error and is complete.
holds() {
	began=$(date +%s)
	(search "$@")
	out=$work/$1/out
	if grep -q 'errors: 0$' "$out" && ! grep -Eq 'not completed|too small|reached -D|out of memory' "$out"; then
		printf '%-12s holds: %s states, %s s\n' "$1" "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' "$out")" "$(($(date +%s) - began))"
	else
		printf '%-12s FAILS\n' "$1"
		sed 's/^/	/' "$out"
		cp "$work/$1/ledger.pml.trail" "${TMPDIR:-/tmp}/berth-model-$1.trail" 2>/dev/null && shift &&
			echo "	spin $* -t -p ledger.pml, with ${TMPDIR:-/tmp}/berth-model-*.trail as ledger.pml.trail, prints the steps"
		touch "$work/failed"
	fi
}

# fails NAME ASSERTION DEFINES: the search finds an error in an assertion whose text contains ASSERTION.
fails() {
	name=$1 assertion=$2 && shift 2
	(TABLE=22 OPTIMIZE=-O1 search "$name" "$@")
	if grep -q "pan:1: assertion violated.*$assertion" "$work/$name/out"; then
		printf '%-12s fails, as it must\n' "$name"
	else
		printf '%-12s DOES NOT FAIL as it must\n' "$name"
		sed 's/^/	/' "$work/$name/out"
		touch "$work/failed"
	fi
}

# The assertions, as spin prints them.
S3='has\[j\]&' S4='exists\[i\]&&entry' S5='self\[j\]&' L1='entry\[cg\[j\]\]' L23='entry\[c\]'

alloc='-DWITH_ALLOC -DNC=3'
pass='-DWITH_ALLOC -DWITH_PASS -DNC=2 -DND=1'
broker='-DWITH_PROC -DNC=2'
inside='-DWITH_ALLOC -DWITH_PROC -DNC=2'

# shellcheck disable=SC2086
{
	{
		fails map-first "$S4" $alloc -DMUTANT_MAP_FIRST
		fails late-close "$S4" $alloc -DMUTANT_RELEASE_LATE
		fails no-cgroup "$S5" $alloc -DMUTANT_NO_CGROUP
		fails order "$L1" $alloc -DMUTANT_ORDER
		fails late-cgroup "$L23" $alloc -DMUTANT_CGROUP_LATE
		fails split-walk "$S5" $inside -DLIMIT_SPLIT_WALK
	} &
	one=$!
	{
		fails no-search "$S3" $pass -DMUTANT_NO_SEARCH
		fails no-stale "$S3" $pass -DMUTANT_NO_STALE
		fails same-list "$S3" $pass -DMUTANT_SAME_LIST
		fails split-search "$S3" $pass -DLIMIT_PASS_ON -DLIMIT_SPLIT_SEARCH
		fails beside "$S5" $broker -DMUTANT_INNER_BESIDE
		fails no-sync "$L23" $broker -DMUTANT_NO_RETRY_SYNC
	} &
	wait "$one" $!
	holds broker $broker
	holds inside $inside
	holds alloc $alloc
	holds pass $pass
}
[ ! -e "$work/failed" ]
