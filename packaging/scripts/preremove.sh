#!/bin/sh
# Before the files go: "remove" of dpkg, or 0 versions that rpm will have left. An
# upgrade changes nothing: running containers keep their leases and their programs.
#
# It refuses, and so the package stays, while that would take the floor from under
# somebody: an engine that names a runtime which is gone starts no container at all,
# and a container can't be deleted without the runtime that made it.
set -e

case ${1-} in
remove | 0) ;;
*) exit 0 ;;
esac

refuse() {
	echo "berth: not removed: $*" >&2
	exit 1
}

# value prints a key of the top of the configuration, or what it is without.
value() {
	found=$(sed -n "/^\[/q; s/^$1 *= *[\"']\([^\"']*\)[\"'].*/\1/p" /etc/berth/config.toml 2>/dev/null)
	echo "${found:-$2}"
}

for record in "$(value data /var/lib/berth)"/setup/*.json; do
	[ -e "$record" ] || continue
	engine=${record##*/}
	refuse "${engine%.json} is set up with it, and would start no container; undo that first: berth setup ${engine%.json} --remove"
done

# What was set up by hand, or by another configuration of berth, has left no record there.
for file in /etc/docker/daemon.json /etc/containerd/config.toml /etc/containerd/conf.d/*.toml \
	/etc/containers/containers.conf /etc/containers/containers.conf.d/*.conf; do
	if sed 's/#.*//' "$file" 2>/dev/null | grep -q '/berth-runtime["'"']"; then
		refuse "$file names berth-runtime, and an engine would start no container by it; take that out first (berth setup ENGINE --remove)"
	fi
done

if leases=$(berth leases --json); then
	live=$(echo "$leases" | grep -c '"live": true' || true)
	[ "$live" = 0 ] || refuse "containers hold GPUs (live leases: $live); berth leases lists them"
elif [ -e "$(value state /run/berth)/ledger.json" ]; then
	refuse "the ledger can't be read, and so whether containers hold GPUs isn't known; berth repair rebuilds it"
fi

# Tasks without GPUs would go on too, and nobody could see or stop them. Records, monitors
# and shims are looked at, for each may be lost or killed.
tasks=$(berth --engine native ps --format '{{.ID}}') || refuse "whether tasks run isn't known (see above)"
if [ -n "$tasks" ]; then
	tasks=$(echo "$tasks" | tr '\n' ' ')
	refuse "tasks run (${tasks% }); end them first: berth stop ${tasks% }"
fi
own=$(readlink /proc/self/ns/pid)
for process in /proc/[0-9]*; do
	# What a container calls so is a program of its own.
	[ "$(readlink "$process/ns/pid" 2>/dev/null)" = "$own" ] || continue
	case $(readlink "$process/exe" 2>/dev/null) in
	*/berth-monitor | */berth-monitor\ *) refuse "process ${process#/proc/} supervises a task whose record is lost; end the task's processes and it first" ;;
	*/containerd-shim-*)
		if tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q -- ' -namespace berth '; then
			refuse "containerd runs tasks of berth; end them first: berth --engine containerd ps, berth --engine containerd stop"
		fi
		;;
	esac
done

# A CDI device whose hook is gone makes engines fail; and others' specs come back.
berth cdi remove || echo "berth: CDI specs that name it may be left in /etc/cdi" >&2
rmdir /etc/cdi 2>/dev/null || true # that nobody else uses

if command -v systemctl >/dev/null; then
	# dpkg calls a later installation no first one: it enables what was enabled.
	for unit in berth-discover.service berth-discover.timer berth-guard.service berth-broker.socket; do
		if systemctl --quiet is-enabled $unit 2>/dev/null; then echo $unit; fi
	done >/var/lib/berth/enabled || true
	systemctl --quiet disable berth-discover.service berth-discover.timer berth-guard.service berth-broker.socket || true
	if [ -d /run/systemd/system ]; then
		systemctl stop berth-broker.socket berth-broker.service berth-discover.timer berth-discover.service berth-guard.service || true
	fi
fi
berth guard off || true # nothing could open a GPU any more

# The driver's files as containers have them, which a discovery would mount again. Containers that
# still run keep theirs.
umount "$(value data /var/lib/berth)/shared" 2>/dev/null || umount -l "$(value data /var/lib/berth)/shared" 2>/dev/null || true
rmdir "$(value data /var/lib/berth)/shared" 2>/dev/null || true
exit 0
