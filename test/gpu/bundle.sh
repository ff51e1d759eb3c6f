#!/bin/sh
# Makes the folder that is carried to a machine with a GPU and no network:
#
#   DIR/run.sh     what to run there, as root
#   DIR/bin        berth's programs, as make build makes them
#   DIR/catatonit  catatonit, for a machine that has none
#   DIR/root       a small root file system: libc, busybox and the probe
#   DIR/runtimes   crun and runc with their libraries, for a machine that has none
#
#   bundle.sh [DIR [PROGRAMS]]     the defaults are .cache/gpu-bundle and bin
set -eu

die() { echo "test/gpu/bundle.sh: $*" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
project=$(cd "$here/../.." && pwd)
out=${1:-$project/.cache/gpu-bundle}
programs=${2:-$project/bin}
for tool in cc busybox catatonit ldd ldconfig; do
	command -v $tool >/dev/null || die "please install $tool (make deps)"
done
[ -x "$programs/berth" ] || die "there is no $programs/berth: run make build"
rm -rf "$out"
mkdir -p "$out/bin" "$out/catatonit" "$out/runtimes/lib" "$out/root"
cp "$programs"/berth* "$out/bin/"
cp "$(command -v catatonit)" "$out/catatonit/"
cp "$here/run.sh" "$out/"

# libraries PROGRAM: what it needs, as paths of this machine.
libraries() { ldd "$1" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }'; }

root=$out/root
for dir in bin dev proc sys tmp etc usr/local/bin opt mnt lib64; do mkdir -p "$root/$dir"; done
cc -O2 -o "$root/usr/local/bin/probe" "$here/testdata/probe.c" -ldl
cp "$(command -v busybox)" "$root/bin/busybox"
for name in sh ls cat env ip sleep; do ln -s busybox "$root/bin/$name"; done
# Those of the C library that drivers and NCCL are linked with, and C++'s.
libc=$(libraries "$root/usr/local/bin/probe" | grep '/libc\.so\.6$')
for lib in $(libraries "$root/usr/local/bin/probe") \
	$(for name in m.so.6 dl.so.2 pthread.so.0 rt.so.1 resolv.so.2 gcc_s.so.1; do echo "$(dirname "$libc")/lib$name"; done) \
	/usr/lib/*-linux-gnu/libstdc++.so.6; do
	[ -e "$lib" ] || continue
	mkdir -p "$root$(dirname "$lib")"
	cp -L "$lib" "$root$lib"
done
printf 'root:x:0:0:root:/:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
printf '%s\n' "$(dirname "$libc")" /usr/lib/*-linux-gnu >"$root/etc/ld.so.conf"
ldconfig -r "$root"

for runtime in crun runc; do
	program=$(command -v $runtime || true)
	[ -n "$program" ] || continue
	cp -L "$program" "$out/runtimes/$runtime"
	for lib in $(libraries "$program"); do
		case $lib in
		*/ld-linux* | */libc.so.* | */libm.so.* | */libpthread.so.* | */libdl.so.* | */librt.so.*) ;; # the machine's own
		*) cp -L "$lib" "$out/runtimes/lib/" ;;
		esac
	done
done
echo "$out"
