#!/bin/sh
# After the files are gone: "remove" or "purge" of dpkg, or 0 versions that rpm has
# left. No lease lives then: preremove has seen to it.
set -e

case ${1-} in
remove | purge | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ] && command -v systemctl >/dev/null; then
	systemctl daemon-reload || true
	systemctl reset-failed berth-discover.service berth-discover.timer berth-broker.service 2>/dev/null || true
fi

if [ "$(readlink /etc/apparmor.d/berth)" = /usr/share/berth/apparmor.d/berth ]; then
	rm /etc/apparmor.d/berth
	rm -f /var/cache/apparmor/*/berth
	if [ -e /sys/kernel/security/apparmor/.remove ]; then
		printf berth >/sys/kernel/security/apparmor/.remove || true # it may not be loaded
	fi
fi
if [ "$1" = purge ]; then
	rm -f /etc/apparmor.d/disable/berth /etc/apparmor.d/force-complain/berth /etc/apparmor.d/local/berth
fi
[ "$1" != remove ] || exit 0

# What dpkg purges, rpm's erasure leaves: driver files, images and the event log, for
# rpm has no second step in which an admin says that they may go.
state=/run/berth
[ "$1" = 0 ] || state="/run/berth /var/lib/berth /etc/berth"

# Nothing is deleted through a mount.
awk '{ print $5 }' /proc/self/mountinfo | grep -E '^(/run|/var/lib)/berth/' | sort -r | while read -r dir; do
	umount "$dir" || umount -l "$dir" || true
done
# What is a mount itself, a disk of its own, is emptied and stays.
# shellcheck disable=SC2086
rm -rf --one-file-system $state 2>/dev/null || true
# Cgroups that held a container's own, and units' device rules of containers that ended.
find /sys/fs/cgroup -depth -type d \( -name 'berth-*.*-*' -o -name '*berth*.*.*.slice' \) -exec rmdir {} + 2>/dev/null || true
exit 0
