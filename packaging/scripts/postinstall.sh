#!/bin/sh
# After the files are there: "configure [OLD VERSION]" of dpkg, "triggered" if AppArmor has
# changed, or the number of versions that rpm has installed. Nothing of any engine is changed, and nothing that
# running containers stand on is touched.
set -e

# install_profile puts AppArmor's profile where AppArmor reads it at boot, and loads it. AppArmor 3
# can't read it, and apparmor.service would fail at each boot. An admin's own file stays.
install_profile() {
	packaged=/usr/share/berth/apparmor.d/berth used=/etc/apparmor.d/berth
	command -v apparmor_parser >/dev/null && [ -d /etc/apparmor.d ] || return 0
	if ! apparmor_parser --skip-kernel-load --skip-cache "$packaged" >/dev/null 2>&1; then
		[ "$(readlink "$used")" != "$packaged" ] || rm "$used" # of a newer AppArmor
		return 0
	fi
	[ -e "$used" ] || [ -L "$used" ] || ln -s "$packaged" "$used"
	[ -d /sys/kernel/security/apparmor ] || return 0
	apparmor_parser --replace --skip-cache "$used" ||
		echo "berth: AppArmor can't load $used: users without root may get no containers" >&2
}

first=no
case ${1-} in
configure) [ -n "${2-}" ] || first=yes ;;
1) first=yes ;;
[2-9]*) ;;
triggered) install_profile; exit 0 ;;
*) exit 0 ;;
esac

if command -v systemd-tmpfiles >/dev/null; then
	systemd-tmpfiles --create berth.conf || true # of an image, where there is no /run
fi
mkdir -p /run/berth /var/lib/berth
# Files of older versions, which every user could read. Some of them may be missing.
chmod -f 600 /run/berth/ledger.json* /run/berth/leases/*.json /run/berth/processes.json || true
chmod -f 640 /var/lib/berth/events.log* || true

install_profile

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
