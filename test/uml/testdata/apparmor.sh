# Starts containers of a user with subordinate ids while two AppArmor profiles are loaded: berth's, and one that denies capabilities to
# the child processes of unshare.
failed=0
want() { # WHAT GOT WANT
	case $2 in $3) ;; *) echo "$1: $2; want $3"; failed=1 ;; esac
}

mount -t securityfs securityfs /sys/kernel/security
for profile in berth unshare; do cat /mnt/$profile.profile >/sys/kernel/security/apparmor/.replace; done
mount -t overlay -o lowerdir=/mnt/bin:/usr/bin overlay /usr/bin
for name in passwd subuid subgid; do
	cp /etc/$name /run/$name
	mount --bind /run/$name /etc/$name
done
echo zoe:x:4711:4711::/run/home:/bin/sh >>/run/passwd
echo zoe:200000:65536 | tee -a /run/subuid >>/run/subgid
mkdir /run/home
chown 4711:4711 /run/home
user="setpriv --reuid 4711 --regid 4711 --clear-groups env HOME=/run/home"
want "capabilities of a child process of unshare" "$($user unshare --map-root-user --mount mount -t tmpfs tmpfs /run/home 2>&1)" "*ermission denied*"

/usr/bin/berth gpus >/dev/null
/usr/bin/berth-broker </dev/null 2>/run/broker.log &
until [ -S /run/berth/broker.sock ]; do sleep 0.1; done
want "berth's profile" "$($user /usr/bin/berth doctor)" "*users may make user namespaces*"
for runtime in crun runc; do
	want "a user's task by $runtime" "$($user /usr/bin/berth run --gpus 1 --runtime $runtime oci:/mnt/image sh -c 'id -u; cat /proc/self/uid_map /proc/self/attr/current')" "0
*0       4711          1
*1     200000      65536
*"
done
kill $!
exit $failed
