#!/bin/sh
# Looks on a machine with a GPU whether berth keeps its word there. It needs root, no
# network and nothing installed; the machine's own berth, if there is one, is left alone.
#
#   run.sh [--guard] [DIR]   what was said goes to files in DIR (default: a new one below /tmp)
#
# With --guard it also turns on the device guard for a few seconds, in which no process without a lease can
# open a GPU: only for a machine that isn't in use.
#
# Each line of the verdict is PASS, FAIL or SKIP, what was looked at, and why. SKIP says
# what the machine lacks. It ends with 1 if anything failed, with 77 if nothing could be
# looked at, and with 0 otherwise.
set -u

here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${BERTH_GPU_INSIDE-}" ]; then
	[ "$(id -u)" = 0 ] || { echo 'FAIL  root: this needs root'; exit 1; }
	unshare --mount true 2>/dev/null || { echo 'SKIP  everything: this machine lets root make no mount namespace'; exit 77; }
	guard=''
	[ "${1-}" != --guard ] || { guard=1; shift; }
	logs=${1:-$(mktemp -d /tmp/berth-gpu.XXXXXX)}
	mkdir -p "$logs" /usr/libexec/catatonit /run/berth /run/berth-gpu /var/lib/berth
	# With a state of its own, which ends with it.
	exec env BERTH_GPU_INSIDE="$logs" BERTH_GPU_GUARD="$guard" unshare --mount --propagation private "$0"
fi
logs=$BERTH_GPU_INSIDE
if ! mount -t tmpfs -o mode=755 none /run/berth || ! mount -t tmpfs -o mode=755 none /var/lib/berth; then
	echo 'SKIP  everything: root may mount nothing'
	exit 77
fi
# Where users can get to it, wherever it was put.
mount --bind "$here" /run/berth-gpu && here=/run/berth-gpu
command -v catatonit >/dev/null || [ -e /usr/libexec/podman/catatonit ] || mount --bind "$here/catatonit" /usr/libexec/catatonit
berth=$here/bin/berth
root=$here/root
passed=0 failed=0 skipped=0

verdict() { # PASS|FAIL|SKIP WHAT WHY
	case $1 in
	PASS) passed=$((passed + 1)) ;;
	FAIL) failed=$((failed + 1)) ;;
	SKIP) skipped=$((skipped + 1)) ;;
	esac
	printf '%s  %s: %s\n' "$1" "$2" "$3" | tee -a "$logs/verdict"
}
finish() {
	rm -rf "$logs/root"
	printf '%d passed, %d failed, %d skipped; what was said is in %s\n' "$passed" "$failed" "$skipped" "$logs" | tee -a "$logs/verdict"
	[ "$failed" = 0 ] || exit 1
	[ -n "${count-}" ] || exit 77 # it is about CUDA
	exit 0
}
last() { tail -n 1 "$logs/$1" 2>/dev/null; }
# say NAME COMMAND…: runs it, keeps what it says, and returns its exit code.
say() {
	name=$1
	shift
	echo "+ $*" >"$logs/$name.call"
	timeout 300 "$@" >"$logs/$name" 2>"$logs/$name.err" </dev/null
}
# why NAME: the last thing that was said.
why() { cat "$logs/$1" "$logs/$1.err" | grep -v '^$' | tail -n 1; }
inside() { name=$1; shift; say "$name" "$berth" run --runtime "$runtime" --network none "$@"; }

: >"$logs/verdict"
{
	echo "machine: $(uname -srm), $(nproc) CPUs"
	cat /proc/driver/nvidia/version 2>/dev/null
	grep -h '^Model\|^GPU UUID\|^Bus Location' /proc/driver/nvidia/gpus/*/information 2>/dev/null
} | tee "$logs/machine"

# A runtime that can be used: the machine's, or one that was carried along, whose
# libraries the loader has to find in processes without an environment too.
runtime='' tried=''
attempt() { # PROGRAM
	[ -z "$runtime" ] && [ -x "$1" ] || return 0
	if say plain "$berth" run --runtime "$1" --network none "$root" /bin/sh -c 'echo it runs' && [ "$(last plain)" = 'it runs' ]; then
		runtime=$1
	else
		tried="$tried$1: $(why plain); "
	fi
}
attempt "$(command -v crun)"
attempt "$(command -v runc)"
if [ -z "$runtime" ]; then
	{ cat /etc/ld.so.conf 2>/dev/null; echo "$here/runtimes/lib"; } >"$logs/ld.so.conf"
	ldconfig -C "$logs/ld.so.cache" -f "$logs/ld.so.conf" 2>/dev/null && mount --bind "$logs/ld.so.cache" /etc/ld.so.cache
	attempt "$here/runtimes/crun"
	attempt "$here/runtimes/runc"
fi
if [ -z "$runtime" ]; then
	verdict FAIL container "a container without a GPU runs with no runtime: ${tried:-there is none}"
	finish
fi
verdict PASS container "a container without a GPU runs with $runtime${tried:+, but not with $tried}"

# What the machine can do by itself.
if [ ! -e /proc/driver/nvidia/version ]; then
	verdict SKIP driver 'this machine has no NVIDIA driver'
	finish
fi
if say discover "$berth" discover && say gpus "$berth" gpus --json; then
	known=$(grep -o '"GPU-[^"]*"' "$logs/gpus" | sort -u | wc -l)
	verdict PASS discover "berth knows $known GPUs, the driver $(find /proc/driver/nvidia/gpus -mindepth 1 -maxdepth 1 | wc -l)"
else
	verdict FAIL discover "$(why discover)"
	finish
fi

# The leased node and no other. That of a simulated one gives ENXIO where it may be opened.
inside one.rules --gpus 1 "$root" probe rules
opens=$(grep -c '^opens\|^closed.*No such device or address' "$logs/one.rules")
made=$(grep -c '^makes' "$logs/one.rules")
if [ "$opens" = 1 ] && [ "$made" = 0 ]; then
	verdict PASS rules 'one node of a GPU can be opened inside, and no other can be made'
else
	verdict FAIL rules "$opens nodes can be opened inside, $made can be made: $(why one.rules)"
fi

# The device guard: a user without root opens the GPU of a lease and no other.
user() { name=$1; shift; say "$name" setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
guarded() {
	user guard.none "$root/usr/local/bin/probe" rules
	if grep -q '^opens' "$logs/guard.none" || ! grep -q '^closed.*Operation not permitted' "$logs/guard.none"; then
		verdict FAIL guard "a user without a lease isn't refused by each GPU: $(why guard.none)"
		return
	fi
	if ! user guard.gpus "$berth" gpus || grep -q '^berth:' "$logs/guard.gpus.err"; then
		verdict FAIL guard "berth gpus of a user without a lease: $(why guard.gpus)"
		return
	fi
	user guard.lease "$berth" alloc 1 -- "$root/usr/local/bin/probe" rules
	opens=$(grep -c '^opens\|^closed.*No such device or address' "$logs/guard.lease")
	if [ "$opens" != 1 ]; then
		verdict FAIL guard "a user's command with one leased GPU opens $opens: $(why guard.lease)"
		return
	fi
	verdict PASS guard "a user without a lease opens no GPU, and with one from the broker that one"
	user outside.none "$root/usr/local/bin/probe" devices
	user outside.lease "$berth" alloc 1 -- "$root/usr/local/bin/probe" devices || return 0 # it may not work at all
	if grep -q '^device' "$logs/outside.none" || [ "$(grep -c '^device' "$logs/outside.lease")" != 1 ]; then
		verdict FAIL guard-cuda "CUDA shows a user $(grep -c '^device' "$logs/outside.none") devices without a lease, and $(grep -c '^device' "$logs/outside.lease") with one"
	else
		verdict PASS guard-cuda "CUDA shows a user no device without a lease ($(why outside.none)), and the leased one with one"
	fi
}
if [ -n "${BERTH_GPU_GUARD-}" ]; then
	if ! command -v setpriv >/dev/null; then
		verdict SKIP guard 'there is no setpriv on this machine'
	elif ! [ -e /sys/fs/cgroup/cgroup.controllers ]; then
		verdict SKIP guard 'it needs cgroup version 2 alone'
	elif "$berth" guard status | grep -q '^on'; then
		verdict SKIP guard "the machine's own is on"
	elif ! say guard.on "$berth" guard on; then
		verdict FAIL guard "$(why guard.on)"
	else
		"$here/bin/berth-broker" >"$logs/broker" 2>&1 &
		broker=$!
		for i in 1 2 3 4 5 6 7 8 9 10; do [ -S /run/berth/broker.sock ] || sleep 0.2; done
		guarded
		kill $broker
		wait $broker
		"$berth" guard off
	fi
fi

# A GPU that a process of another PID namespace still has open when its lease ends isn't leased before that has ended.
first=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | sort | head -n 1)
if ! (: <"$first") 2>/dev/null; then
	verdict SKIP leftover "no process can open $first"
elif grep -q '"MIG-' "$logs/gpus"; then
	verdict SKIP leftover 'GPUs are in MIG mode'
else
	unshare --pid --fork --kill-child sleep 300 <"$first" &
	other=$!
	if ! say leftover.first "$berth" alloc all -- true; then
		verdict FAIL leftover "$(why leftover.first)"
	elif say leftover "$berth" alloc all -- true || ! grep -q 'in use by sleep' "$logs/leftover.err"; then
		verdict FAIL leftover "a GPU that a process has open is leased again: $(why leftover)"
	else
		kill $other
		wait $other
		if say leftover.after "$berth" alloc all -- true; then
			verdict PASS leftover 'a GPU that a process has open after a lease is leased when that has ended'
		else
			verdict FAIL leftover "the process has ended, and its GPU isn't leased: $(why leftover.after)"
		fi
	fi
	kill $other 2>/dev/null
fi

say outside.devices "$root/usr/local/bin/probe" devices
case $? in
0) ;;
77) verdict SKIP cuda "the machine has no libcuda that can be used: $(why outside.devices)"; finish ;;
*) verdict SKIP cuda "the machine's own libcuda doesn't work: $(why outside.devices)"; finish ;;
esac
count=$(grep -c '^device ' "$logs/outside.devices")
[ "$count" -gt 0 ] || { verdict SKIP cuda 'the machine has a driver, and no GPU that CUDA shows'; finish; }

# CUDA opens the leased device and no other.
if inside one.devices --gpus 1 "$root" probe devices; then
	ids=$(awk '$1 == "device" { print $3 }' "$logs/one.devices")
	if [ "$(grep -c '^device ' "$logs/one.devices")" = 1 ] && grep -q "$ids" "$logs/outside.devices"; then
		verdict PASS one "CUDA opens one device inside, of $count: $ids"
	else
		verdict FAIL one "CUDA shows $(grep -c '^device ' "$logs/one.devices") devices inside, and one was leased"
	fi
else
	verdict FAIL one "CUDA doesn't work inside, as it does outside: $(why one.devices)"
fi
inside none.devices "$root" probe devices
case $? in
0) verdict FAIL without 'CUDA works in a container that has leased nothing' ;;
*) verdict PASS without "CUDA doesn't start in a container that has leased nothing: $(why none.devices)" ;;
esac
if [ "$count" -gt 1 ]; then
	say two "$berth" run -n 2 --gpus-per-rank 1 --bind-gpus rank --runtime "$runtime" --network none "$root" probe devices
	distinct=$(grep -o 'device 0 [^ ]*' "$logs/two" | sort -u | wc -l)
	if [ "$distinct" = 2 ]; then
		verdict PASS two 'two ranks with a GPU each have two'
	else
		verdict FAIL two "two ranks with a GPU each have $distinct: $(why two)"
	fi
else
	verdict SKIP two 'this machine has one GPU'
fi

# Speed. Each is the best of several runs in one process; of three of those, the best.
best() { # NAME COMMAND…: prints the figure
	of=$1 top=0
	shift
	for i in 1 2 3; do
		say "$of.$i" "$@" || return $?
		top=$(awk -v top="$top" '$1 == "gflops" && $2 > top { top = $2 } END { print top }' "$logs/$of.$i")
	done
	echo "$top"
}
speed() { # NAME KIND OPTION…
	what=$1 kind=$2
	shift 2
	outside=$(best "outside.$what" env LD_LIBRARY_PATH="$libraries" "$root/usr/local/bin/probe" "$kind")
	case $? in
	0) ;;
	77) verdict SKIP "$what" "not on this machine: $(why "outside.$what.1")"; return ;;
	*) verdict SKIP "$what" "it doesn't work outside either: $(why "outside.$what.1")"; return ;;
	esac
	within=$(best "inside.$what" "$berth" run --gpus 1 --runtime "$runtime" --network none "$@" "$root" probe "$kind") ||
		{ verdict FAIL "$what" "it works outside, and not inside: $(why "inside.$what.1")"; return; }
	ratio=$(awk -v a="$within" -v b="$outside" 'BEGIN { printf "%.3f", a / b }')
	if awk -v r="$ratio" 'BEGIN { exit !(r >= 0.95) }'; then
		verdict PASS "$what" "$within GFLOPS inside, $outside outside: ratio $ratio"
	else
		verdict FAIL "$what" "$within GFLOPS inside, $outside outside: ratio $ratio, below 0.95"
	fi
}
libraries=${LD_LIBRARY_PATH-} # where those are that are used outside
speed product product

# find NAME: a library of this machine, wherever it came from.
find_library() {
	found=$(ldconfig -p 2>/dev/null | awk -v n="$1" '$1 ~ n { print $NF; exit }')
	[ -n "$found" ] || found=$(find / -xdev \( -path /proc -o -path "$here" \) -prune -o -name "$1*" -print 2>/dev/null | head -n 1)
	[ -z "$found" ] || readlink -f "$found"
}
# Only the two files come in: beside them may be a libc that isn't the container's.
cublas=$(find_library libcublas.so.1)
if [ -n "$cublas" ]; then
	libraries=$(dirname "$cublas")
	major=$(basename "$cublas" | sed 's/libcublas\.so\.\([0-9]*\).*/\1/')
	speed cublas blas -v "$cublas:/opt/blas/libcublas.so.$major:ro" \
		-v "$(readlink -f "$libraries/libcublasLt.so.$major"):/opt/blas/libcublasLt.so.$major:ro" -e LD_LIBRARY_PATH=/opt/blas
else
	verdict SKIP cublas 'there is no libcublas on this machine'
fi

# NCCL, in each network.
nccl=$(find_library libnccl.so.2)
if [ -z "$nccl" ]; then
	verdict SKIP nccl 'there is no libnccl on this machine'
	finish
fi
# In a root with this machine's own C library: NCCL may need a newer one than the bundle's.
cp -a "$root" "$logs/root"
ldd "$nccl" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }' | while read -r lib; do
	old=$(find "$logs/root" -name "$(basename "$lib")" | head -n 1)
	cp -L "$lib" "${old:-$(dirname "$(find "$logs/root" -name libc.so.6)")}"
done
ldconfig -r "$logs/root"
numa=$(cat /sys/bus/pci/devices/*/numa_node 2>/dev/null | sort -n | tail -n 1)
for network in none private host; do
	what=nccl-$network
	if ! say "$what" "$berth" run -n 1 --gpus-per-rank 1 --network "$network" --runtime "$runtime" \
		-v "$nccl:/opt/libnccl.so.2:ro" -e LD_LIBRARY_PATH=/opt -e NCCL_DEBUG=INFO -e NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV \
		"$logs/root" /usr/local/bin/probe nccl; then
		verdict FAIL "$what" "$(why "$what")"
		continue
	fi
	cat "$logs/$what" "$logs/$what.err" >"$logs/$what.log"
	wanted=$(grep -o 'NCCL_SOCKET_IFNAME set by environment to =*[a-z0-9]*' "$logs/$what.log" | head -n 1 | sed 's/.*=//; s/.* //')
	used=$(grep -o '\(Bootstrap\|NET/Socket\) *: *Using [^:<]*' "$logs/$what.log" | head -n 1 | sed 's/.*Using *//; s/^\[0\]//')
	case $network in none) expected=lo ;; private) expected=eth0 ;; *) expected=$wanted ;; esac
	if [ -n "$expected" ] && [ -n "$used" ] && [ "$used" != "$expected" ]; then
		verdict FAIL "$what" "it speaks through $used, and not through $expected"
	elif grep -q 'NCCL WARN' "$logs/$what.log"; then
		verdict FAIL "$what" "it warns: $(grep -m 1 'NCCL WARN' "$logs/$what.log" | sed 's/.*NCCL WARN *//')"
	elif [ "${numa:--1}" -ge 0 ] && grep -q 'CPU/[0-9A-F]*-ffffffff\|CPU/ffffffff' "$logs/$what.log"; then
		verdict FAIL "$what" "it doesn't see the GPU's NUMA node, which the machine knows"
	else
		verdict PASS "$what" "$(grep -o 'nccl [0-9]* agrees' "$logs/$what.log"), through ${used:-one that it does not name}; $(grep -o 'CPU/[^ ]*' "$logs/$what.log" | sort -u | tr '\n' ' ')"
	fi
done
finish
