package apptainer

// ownDev is the reason for differences of mounts.
const ownDev = "/dev is a file system with the devices that each command may have"

// listMounts prints the mounts of a container, without those inside of the server's own directories.
const listMounts = `while read -r source target type options _; do
	case $target in
	/proc/?* | /sys/?*) ;;
	*) echo "$target ${options%%,relatime*}" ;;
	esac
done </proc/mounts`

var mountUses = []use{
	{name: "mounts", script: `apptainer exec /images/full.sif sh -c '` + listMounts + `'`, differs: ownDev},
	{name: "mounts with --contain", script: `apptainer exec --contain /images/full.sif sh -c '` + listMounts + `'`, differs: ownDev},
	{name: "mounts with --containall", script: `apptainer exec --containall /images/full.sif sh -c '` + listMounts + `'`, differs: ownDev},
	{name: "mounts with binds", script: `mkdir d; touch f; apptainer exec -B d:/one,d:/two:ro,f:/three /images/full.sif sh -c '` + listMounts + `'`, differs: ownDev},
	{name: "mounts with a working directory elsewhere", script: `cd /opt/host; apptainer exec /images/full.sif sh -c '` + listMounts + `'`, differs: ownDev},
	{name: "mounts with --home", script: `mkdir h; apptainer exec -H /home/ann/h:/opt/h /images/full.sif sh -c '` + listMounts + `'`, differs: ownDev},
	{name: "mounts with --fakeroot", script: `apptainer exec --fakeroot /images/full.sif sh -c '` + listMounts + `'`, differs: ownDev},
	{name: "mounts of a directory", script: `apptainer exec /images/sandbox sh -c '` + listMounts + `'`, differs: ownDev},
	{name: "devices", script: `apptainer exec /images/bare.sif sh -c 'ls /dev /dev/shm | grep -v -E "^(nvidia|infiniband|dri|gdrdrv)"; : </dev/zero; echo >/dev/null; echo a >/dev/shm/a; rm /dev/shm/a'`, differs: ownDev},
	{name: "devices with --contain", script: `apptainer exec -c /images/bare.sif sh -c 'stat -c "%N %A %t:%T" /dev/* /dev/pts/*; ls -A /dev/shm; echo a >/dev/shm/a && cat /dev/shm/a'`},
	{name: "GPUs' device nodes", script: `apptainer exec /images/bare.sif sh -c 'ls /dev | grep -c nvidia'; apptainer exec -c /images/bare.sif sh -c 'ls /dev | grep -c nvidia'`, differs: "without a lease there is no GPU"},
	{name: "hosts of the server", script: `apptainer exec /images/full.sif cat /etc/hosts`},
	{name: "resolv.conf", script: `apptainer exec /images/bare.sif cat /etc/resolv.conf; apptainer exec --dns 1.2.3.4,5.6.7.8 /images/bare.sif cat /etc/resolv.conf`},
	{name: "localtime", script: `apptainer exec /images/debian.sif sh -c 'cmp /etc/localtime /usr/share/zoneinfo/UTC 2>&1; date +%Z'`},
	{name: "top directory", script: `apptainer exec /images/bare.sif ls -A /; apptainer exec -B /images /images/bare.sif ls -A / | grep images`},
	{name: "a read-only root", script: `apptainer exec /images/bare.sif touch /x; apptainer exec /images/bare.sif touch /etc/passwd /etc/x; apptainer exec /images/bare.sif rm /bin/sh`},
	{name: "tmp is the server's", script: `echo a >/tmp/a; apptainer exec /images/bare.sif sh -c 'cat /tmp/a; echo b >/tmp/b; ls -d /var/tmp'`},
	{name: "--writable-tmpfs", script: `apptainer exec --writable-tmpfs /images/full.sif sh -c 'touch /x /etc/y && rm /data/file && mkdir /bin/z && ls /x /etc/y /data; echo a >>/etc/group; tail -n 1 /etc/group'; apptainer exec /images/full.sif ls /data`},
	{name: "--writable of an image without a partition", script: `apptainer exec --writable /images/bare.sif true`},
	{name: "-B", script: `mkdir d; echo one >d/a; apptainer exec -B d:/data /images/full.sif sh -c 'cat /data/a; echo two >/data/b'`},
	{name: "-B of the same path", script: `apptainer exec -B /opt/host /images/bare.sif ls -d /opt/host; apptainer exec -B /usr/share/zoneinfo /images/bare.sif ls /usr/share/zoneinfo/UTC`},
	{name: "-B of a relative path alone", script: `mkdir d; apptainer exec -B d /images/bare.sif true`},
	{name: "-B read-only", script: `mkdir d; apptainer exec -B d:/data:ro /images/full.sif touch /data/a`},
	{name: "-B rw", script: `mkdir d; apptainer exec -B d:/data:rw /images/full.sif touch /data/a`},
	{name: "-B of several", script: `mkdir d e; touch d/a e/b; apptainer exec -B d:/data,e:/work -B d:/more /images/full.sif ls /data /work /more`},
	{name: "-B of a file", script: `echo mine >f; apptainer exec -B f:/data/file /images/full.sif sh -c 'cat /data/file; echo more >>/data/file'`},
	{name: "-B to a path that the image has not", script: `mkdir d; echo mine >f; apptainer exec -B d:/new/deep/dir,f:/other/deep/file /images/bare.sif sh -c 'ls -d /new/deep/dir; cat /other/deep/file; touch /new/x'`},
	{name: "-B below a directory that the image has", script: `mkdir d; touch d/a; apptainer exec -B d:/etc/new /images/bare.sif sh -c 'ls /etc/new; ls -d /etc/passwd'; apptainer exec -B d:/usr/lib/new /images/debian.sif sh -c 'ls /usr/lib/new; ls -d /usr/lib/os-release'`},
	{name: "-B by a link of the image", script: `mkdir d; touch d/a; apptainer exec -B d:/lib/new /images/debian.sif ls /usr/lib/new`},
	{name: "-B below another one", script: `mkdir d e; touch e/b; apptainer exec -B d:/data -B e:/data/sub /images/full.sif ls -R /data`},
	{name: "-B twice to the same path", script: `mkdir d e; touch d/a e/b; apptainer exec -B d:/data -B e:/data /images/full.sif ls /data`},
	{name: "-B below home", script: `mkdir d; touch d/a; apptainer exec -B d:/home/ann/new/dir /images/bare.sif ls new/dir`},
	{name: "-B over home", script: `mkdir d; touch d/a; apptainer exec -B d:/home/ann /images/bare.sif ls`},
	{name: "-B over tmp", script: `mkdir d; touch d/a; apptainer exec -B d:/tmp /images/bare.sif ls /tmp`},
	{name: "-B over etc", script: `mkdir d; touch d/a; apptainer exec -B d:/etc /images/bare.sif ls /etc`, differs: "no mount point is made in the directory of the user"},
	{name: "-B of a link", script: `mkdir d; touch d/a; ln -s d link; apptainer exec -B link:/data /images/full.sif ls /data`},
	{name: "-B with a space", script: `mkdir 'a b'; touch 'a b/c'; apptainer exec -B 'a b:/data dir' /images/bare.sif ls '/data dir'`},
	{name: "-B of a missing source", script: `apptainer exec -B /nosuch:/data /images/full.sif true`},
	{name: "-B of a directory to a file", script: `mkdir d; apptainer exec -B d:/data/file /images/full.sif true`},
	{name: "-B with a wrong option", script: `mkdir d; apptainer exec -B d:/data:xx /images/full.sif true`},
	{name: "-B with a relative destination", script: `mkdir d; apptainer exec -B d:data /images/full.sif true`},
	{name: "APPTAINER_BIND", script: `mkdir d e; touch d/a e/b; APPTAINER_BIND=$PWD/d:/data,e:/work:ro apptainer exec /images/full.sif sh -c 'ls /data /work; touch /work/c'`},
	{name: "APPTAINER_BINDPATH and SINGULARITY_BIND", script: `mkdir d; touch d/a; APPTAINER_BINDPATH=$PWD/d:/one SINGULARITY_BIND=$PWD/d:/two apptainer exec -B d:/three /images/bare.sif ls /one /two /three`},
	{name: "--mount", script: `mkdir d; touch d/a; apptainer exec --mount type=bind,source=$PWD/d,destination=/data /images/full.sif sh -c 'ls /data; touch /data/b'`},
	{name: "--mount with short words", script: `mkdir d; touch d/a; apptainer exec --mount src=$PWD/d,dst=/data,ro /images/full.sif sh -c 'ls /data; touch /data/b'`},
	{name: "--mount with a comma in the path", script: `mkdir a,b; touch a,b/c; apptainer exec --mount '"type=bind","src=/home/ann/a,b","dst=/data"' /images/full.sif ls /data`},
	{name: "--mount of another type", script: `apptainer exec --mount type=tmpfs,dst=/data /images/full.sif true`},
	{name: "--mount without a destination", script: `apptainer exec --mount type=bind,src=/tmp /images/full.sif true`},
	{name: "--no-mount of single files", script: `apptainer exec --no-mount /etc/hosts,/etc/localtime /images/full.sif sh -c 'cat /etc/hosts; ls /etc/localtime'`},
	{name: "--no-mount bind-paths", script: `apptainer exec --no-mount bind-paths /images/full.sif cat /etc/hosts`},
	{name: "--no-mount proc and sys", script: `apptainer exec --no-mount proc,sys /images/bare.sif ls -A /proc /sys`},
	{name: "--no-mount dev", script: `apptainer exec --no-mount dev,devpts /images/bare.sif ls -A /dev`, differs: "the script that executes the command is in /dev"},
	{name: "--no-mount of something unknown", script: `apptainer exec --no-mount nosuch /images/bare.sif echo a`},
	{name: "--contain with -B", script: `mkdir d; touch d/a; apptainer exec -c -B d:/tmp/d,d:/home/ann/e /images/bare.sif ls /tmp/d /home/ann/e`},
}
