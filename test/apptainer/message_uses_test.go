package apptainer

var messageUses = []use{
	{name: "exec without a command", script: `apptainer exec /images/bare.sif`},
	{name: "exec without an image", script: `apptainer exec`},
	{name: "run without an image", script: `apptainer run`},
	{name: "shell without an image", script: `apptainer shell`},
	{name: "an unknown flag", script: `apptainer exec --nosuch /images/bare.sif true`},
	{name: "an unknown short flag", script: `apptainer exec -Z /images/bare.sif true`},
	{name: "a flag without its value", script: `apptainer exec --bind`},
	{name: "flags of the command", script: `apptainer exec /images/bare.sif echo --env a -B --help`},
	{name: "two dashes", script: `apptainer exec -- /images/bare.sif echo a; apptainer exec /images/bare.sif -- echo b; apptainer exec /images/bare.sif echo -- c`, differs: "they may stand before the command, too"},
	{name: "flags with an equals sign", script: `apptainer exec --env=A=1 --pwd=/etc -B=/opt/host /images/bare.sif sh -c 'echo $A; pwd'`},
	{name: "short flags together", script: `apptainer exec -ec /images/bare.sif sh -c 'echo ${USER-unset}; ls -A'; apptainer exec -B/opt/host /images/bare.sif ls -d /opt/host`},
	{name: "--net without a network", script: `apptainer exec --net /images/bare.sif true`},
	{name: "--net --network none", script: `apptainer exec --net --network none /images/bare.sif ls /sys/class/net /proc/sys/net/ipv4/conf`},
	{name: "--quiet and --silent", script: `apptainer -q exec -B /nosuch /images/bare.sif true; apptainer -s exec --no-mount nosuch /images/bare.sif echo a; apptainer -s exec /images/bare.sif nosuch`},
	{name: "APPTAINER variables for flags", script: `mkdir d; APPTAINER_CONTAIN=1 apptainer exec /images/bare.sif ls -A; APPTAINER_PWD=/etc apptainer exec /images/bare.sif pwd; APPTAINER_NO_HOME=1 apptainer exec --pwd / /images/bare.sif ls /home; APPTAINER_WRITABLE_TMPFS=1 apptainer exec /images/bare.sif touch /x`},
	{name: "SINGULARITY variables for flags", script: `SINGULARITY_CONTAIN=1 apptainer exec /images/bare.sif ls -A`},
	{name: "--help of exec", script: `apptainer exec --help | head -n 2; apptainer exec /images/bare.sif true --help`, differs: "the help is of berth"},
	{name: "--bind with three colons", script: `mkdir d; apptainer exec -B d:/data:ro:rw /images/full.sif true; apptainer exec -B d: /images/full.sif true`},
	{name: "two writable overlays", script: `mkdir d e; apptainer exec --overlay d --overlay e /images/bare.sif true; apptainer exec --writable-tmpfs --overlay d /images/bare.sif true`, differs: "--writable-tmpfs with --overlay writes to the overlay"},
	{name: "a bind into proc", script: `mkdir d; apptainer exec -B d:/proc/nosuch /images/full.sif true`},
}
