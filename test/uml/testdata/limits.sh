# Limits of tasks, of root's and of a user's with the broker and the device guard.
failed=0
user="setpriv --reuid 4711 --regid 4711 --clear-groups env HOME=/run/home"
as() { # WHO COMMAND…
	if [ "$1" = root ]; then shift; else shift; set -- $user "$@"; fi
	"$@"
}
want() { # WHAT GOT WANT
	case $2 in $3) ;; *) echo "$1: $2; want $3"; failed=1 ;; esac
}

mkdir /run/home
chown 4711:4711 /run/home
berth gpus >/dev/null
berth guard on
berth-broker </dev/null 2>/run/broker.log &
until [ -S /run/berth/broker.sock ]; do sleep 0.1; done
image=oci:/mnt/image

for who in root user; do
	limits='cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.swap.max /sys/fs/cgroup/cpu.max /sys/fs/cgroup/pids.max 2>/dev/null | tr "\n" " "'
	for gpus in "--gpus 1" ""; do
		want "$who's limits $gpus" "$(as $who berth run $gpus --memory 64m --cpus 0.5 --pids-limit 20 $image sh -c "$limits")" '67108864 *50000 100000 20 '
		want "$who without limits $gpus" "$(as $who berth run $gpus $image cat /sys/fs/cgroup/memory.max)" max
		out=$(as $who berth run $gpus --memory 32m $image dd if=/dev/zero of=/dev/null bs=100M count=1 2>&1)
		want "$who's memory $gpus" "$? $out" '137 berth: out of memory: *its limit is 32 MiB (--memory)'
		out=$(as $who berth run $gpus --pids-limit 6 $image sh -c 'for i in 1 2 3 4 5 6 7 8; do sleep 1 & done' 2>&1)
		want "$who's processes $gpus" "$out" "*can't fork*"
		out=$(as $who berth run $gpus --cpus 0.2 $image sh -c 'timeout 2 sh -c "while :; do :; done"; sed -n "s/^nr_throttled //p" /sys/fs/cgroup/cpu.stat')
		want "$who's processors $gpus" "$out" '[1-9]*'
	done
	want "limits of $who's ranks" "$(as $who berth run -n 2 --gpus-per-rank 1 --network none --memory 64m --cpus 0.5 --pids-limit 20 $image sh -c "$limits; echo" | sort)" \
		'rank-0 | 67108864 *50000 100000 20 
rank-1 | 67108864 *50000 100000 20 '
	id=$(as $who berth run -d --gpus 1 --memory 64m --pids-limit 20 $image sleep 100)
	want "$who's stats" "$(as $who berth stats --no-stream --format '{{.MemUsage}} {{.PIDs}}' "$id" 2>&1)" '*64*'
	as $who berth rm -f "$id" >/dev/null
done
for _ in 1 2 3 4 5 6 7 8 9 10; do # the broker looks each second
	left=$(berth leases)
	case $left in "there are no leases"*) break ;; esac
	sleep 1
done
want "leases" "$left" "there are no leases*"
kill $!
exit $failed
