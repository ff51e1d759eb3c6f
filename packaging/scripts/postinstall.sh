#!/bin/sh
# After the files are there: "configure [OLD VERSION]" of dpkg, or the number of
# versions that rpm has installed. Nothing of any engine is changed, and nothing that
# running containers stand on is touched.
set -e

first=no
case ${1-} in
configure) [ -n "${2-}" ] || first=yes ;;
1) first=yes ;;
[2-9]*) ;;
*) exit 0 ;;
esac

if command -v systemd-tmpfiles >/dev/null; then
	systemd-tmpfiles --create berth.conf || true # of an image, where there is no /run
fi
mkdir -p /run/berth /var/lib/berth
# Files of older versions, which every user could read. Some of them may be missing.
chmod -f 600 /run/berth/ledger.json* /run/berth/leases/*.json /run/berth/processes.json || true
chmod -f 640 /var/lib/berth/events.log* || true

command -v systemctl >/dev/null || exit 0
if [ $first = yes ]; then
	systemctl --quiet enable berth-discover.service berth-discover.timer
elif [ -s /var/lib/berth/enabled ]; then # when it was removed
	xargs systemctl --quiet enable </var/lib/berth/enabled
fi
rm -f /var/lib/berth/enabled
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# A broker of an older version: requests that wait go on with the new one.
systemctl try-restart berth-broker.service || true
# A unit that the admin has disabled or masked stays so.
if systemctl --quiet is-enabled berth-discover.timer 2>/dev/null; then
	systemctl start berth-discover.timer || true
fi
if systemctl --quiet is-enabled berth-discover.service 2>/dev/null; then
	systemctl start berth-discover.service ||
		echo "berth: the node's GPUs can't be discovered yet: journalctl -u berth-discover says why" >&2
fi
exit 0
