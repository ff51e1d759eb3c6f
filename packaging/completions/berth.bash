# bash completion for berth. make docs writes it from the code.

_berth() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb= i
	# A flag and its value may be joined by =, which is a word of its own here.
	if [ "$cur" = = ]; then cur=; elif [ "$prev" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi
	# So it is with the colons in names of images, of which only the last part is replaced.
	local whole=${COMP_LINE:0:COMP_POINT} there=
	whole=${whole##*[ =]}
	case $COMP_WORDBREAKS,$whole in *:*,*:*) there=${whole%:*}: cur=$whole ;; esac
	for ((i = 1; i < COMP_CWORD; i++)); do
		case $verb,${COMP_WORDS[i]} in
		,--config | ,--engine | ,--containerd-address) [ "${COMP_WORDS[i + 1]}" != = ] || ((i++)); ((i++)) ;;
		*,-* | *,=) ;;
		,*) verb=${COMP_WORDS[i]} ;;
		system,*) verb="system ${COMP_WORDS[i]}" ;;
		apptainer,*) verb="apptainer ${COMP_WORDS[i]}" ;;
		cdi,*) verb="cdi ${COMP_WORDS[i]}" ;;
		setup,*) verb="setup ${COMP_WORDS[i]}" ;;
		guard,*) verb="guard ${COMP_WORDS[i]}" ;;
		esac
	done
	COMPREPLY=()
	case $verb,$prev in
	,--config) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	,--engine) mapfile -t COMPREPLY < <(compgen -W 'native containerd' -- "$cur"); return ;;
	,--containerd-address) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	run,--ranks | run,-n) :; return ;;
	run,--gang) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	run,--gpus-per-rank) mapfile -t COMPREPLY < <(compgen -W "$(printf '%s\n' 1 2 4 8 all; berth gpus 2>/dev/null | awk '$NF ~ /^(GPU|MIG)-/ { print $NF }')" -- "$cur"); return ;;
	run,--bind-gpus) mapfile -t COMPREPLY < <(compgen -W 'gang rank' -- "$cur"); return ;;
	run,--gpus | run,-G) mapfile -t COMPREPLY < <(compgen -W "$(printf '%s\n' 1 2 4 8 all; berth gpus 2>/dev/null | awk '$NF ~ /^(GPU|MIG)-/ { print $NF }')" -- "$cur"); return ;;
	run,--nics) mapfile -t COMPREPLY < <(compgen -W 'auto none' -- "$cur"); return ;;
	run,--device) mapfile -t COMPREPLY < <(compgen -W "$(berth cdi list 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$cur"); return ;;
	run,--entrypoint) :; return ;;
	run,--env | run,-e) :; return ;;
	run,--env-file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	run,--workdir | run,-w) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	run,--user | run,-u) :; return ;;
	run,--group-add) :; return ;;
	run,--stop-signal) mapfile -t COMPREPLY < <(compgen -W 'TERM KILL INT HUP QUIT USR1 USR2' -- "$cur"); return ;;
	run,--stop-timeout) :; return ;;
	run,--runtime) mapfile -t COMPREPLY < <(compgen -W 'crun runc' -- "$cur"); return ;;
	run,--volume | run,-v) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	run,--mount) :; return ;;
	run,--tmpfs) :; return ;;
	run,--storage-opt) :; return ;;
	run,--shm-size) :; return ;;
	run,--cidfile) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	run,--memory | run,-m) :; return ;;
	run,--memory-swap) :; return ;;
	run,--memory-reservation) :; return ;;
	run,--cpus) :; return ;;
	run,--cpuset-cpus) :; return ;;
	run,--cpuset-mems) :; return ;;
	run,--cpu-shares | run,-c) :; return ;;
	run,--pids-limit) :; return ;;
	run,--ulimit) :; return ;;
	run,--oom-score-adj) :; return ;;
	run,--cap-add) mapfile -t COMPREPLY < <(compgen -W 'ALL AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_CHROOT SYS_NICE SYS_PACCT SYS_PTRACE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM' -- "$cur"); return ;;
	run,--cap-drop) mapfile -t COMPREPLY < <(compgen -W 'ALL AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND CHECKPOINT_RESTORE CHOWN DAC_OVERRIDE FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_CHROOT SYS_NICE SYS_PACCT SYS_PTRACE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM' -- "$cur"); return ;;
	run,--security-opt) mapfile -t COMPREPLY < <(compgen -W 'no-new-privileges seccomp=unconfined apparmor=unconfined label=disable' -- "$cur"); return ;;
	run,--ipc) mapfile -t COMPREPLY < <(compgen -W 'private host' -- "$cur"); return ;;
	run,--pid) mapfile -t COMPREPLY < <(compgen -W 'private' -- "$cur"); return ;;
	run,--uts) mapfile -t COMPREPLY < <(compgen -W 'private host' -- "$cur"); return ;;
	run,--userns) mapfile -t COMPREPLY < <(compgen -W 'host' -- "$cur"); return ;;
	run,--cgroupns) mapfile -t COMPREPLY < <(compgen -W 'private host' -- "$cur"); return ;;
	run,--sysctl) :; return ;;
	run,--name) :; return ;;
	run,--hostname) :; return ;;
	run,--domainname) :; return ;;
	run,--network | run,--net) mapfile -t COMPREPLY < <(compgen -W 'host none private rdma' -- "$cur"); return ;;
	run,--publish | run,-p) :; return ;;
	run,--add-host) :; return ;;
	run,--dns) :; return ;;
	run,--dns-search) :; return ;;
	run,--dns-option | run,--dns-opt) :; return ;;
	run,--label | run,-l) :; return ;;
	run,--label-file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	run,--annotation) :; return ;;
	run,--restart) mapfile -t COMPREPLY < <(compgen -W 'no on-failure always unless-stopped' -- "$cur"); return ;;
	run,--timeout) :; return ;;
	run,--log-opt) mapfile -t COMPREPLY < <(compgen -W 'max-size= max-file=' -- "$cur"); return ;;
	run,--pull) mapfile -t COMPREPLY < <(compgen -W 'missing always never' -- "$cur"); return ;;
	run,--platform) mapfile -t COMPREPLY < <(compgen -W 'linux/amd64 linux/arm64' -- "$cur"); return ;;
	ps,--filter | ps,-f) mapfile -t COMPREPLY < <(compgen -W 'id= name= image= label= status= exited= gpu=' -- "$cur"); return ;;
	ps,--format) :; return ;;
	ps,--last | ps,-n) :; return ;;
	exec,--env | exec,-e) :; return ;;
	exec,--env-file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	exec,--user | exec,-u) :; return ;;
	exec,--workdir | exec,-w) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	stop,--time | stop,--timeout | stop,-t) :; return ;;
	kill,--signal | kill,-s) mapfile -t COMPREPLY < <(compgen -W 'TERM KILL INT HUP QUIT USR1 USR2' -- "$cur"); return ;;
	logs,--since) :; return ;;
	logs,--until) :; return ;;
	logs,--tail | logs,-n) :; return ;;
	attach,--detach-keys) :; return ;;
	inspect,--format | inspect,-f) :; return ;;
	stats,--format) :; return ;;
	pull,--platform) mapfile -t COMPREPLY < <(compgen -W 'linux/amd64 linux/arm64' -- "$cur"); return ;;
	login,--username | login,-u) :; return ;;
	login,--password | login,-p) :; return ;;
	images,--filter | images,-f) mapfile -t COMPREPLY < <(compgen -W 'label= reference=' -- "$cur"); return ;;
	images,--format) :; return ;;
	prune,--filter) mapfile -t COMPREPLY < <(compgen -W 'until= label= label!=' -- "$cur"); return ;;
	"system prune",--filter) mapfile -t COMPREPLY < <(compgen -W 'until=' -- "$cur"); return ;;
	"apptainer exec",--gpus) mapfile -t COMPREPLY < <(compgen -W "$(printf '%s\n' 1 2 4 8 all; berth gpus 2>/dev/null | awk '$NF ~ /^(GPU|MIG)-/ { print $NF }')" -- "$cur"); return ;;
	"apptainer exec",--bind | "apptainer exec",-B) :; return ;;
	"apptainer exec",--mount) :; return ;;
	"apptainer exec",--home | "apptainer exec",-H) :; return ;;
	"apptainer exec",--no-mount) :; return ;;
	"apptainer exec",--pwd | "apptainer exec",--cwd) :; return ;;
	"apptainer exec",--env) :; return ;;
	"apptainer exec",--env-file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	"apptainer exec",--overlay | "apptainer exec",-o) :; return ;;
	"apptainer exec",--scratch | "apptainer exec",-S) :; return ;;
	"apptainer exec",--workdir | "apptainer exec",-W) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	"apptainer exec",--network) mapfile -t COMPREPLY < <(compgen -W 'host none private rdma' -- "$cur"); return ;;
	"apptainer exec",--hostname) :; return ;;
	"apptainer exec",--app) :; return ;;
	"apptainer exec",--shell | "apptainer exec",-s) :; return ;;
	"apptainer exec",--dns) :; return ;;
	"apptainer run",--gpus) mapfile -t COMPREPLY < <(compgen -W "$(printf '%s\n' 1 2 4 8 all; berth gpus 2>/dev/null | awk '$NF ~ /^(GPU|MIG)-/ { print $NF }')" -- "$cur"); return ;;
	"apptainer run",--bind | "apptainer run",-B) :; return ;;
	"apptainer run",--mount) :; return ;;
	"apptainer run",--home | "apptainer run",-H) :; return ;;
	"apptainer run",--no-mount) :; return ;;
	"apptainer run",--pwd | "apptainer run",--cwd) :; return ;;
	"apptainer run",--env) :; return ;;
	"apptainer run",--env-file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	"apptainer run",--overlay | "apptainer run",-o) :; return ;;
	"apptainer run",--scratch | "apptainer run",-S) :; return ;;
	"apptainer run",--workdir | "apptainer run",-W) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	"apptainer run",--network) mapfile -t COMPREPLY < <(compgen -W 'host none private rdma' -- "$cur"); return ;;
	"apptainer run",--hostname) :; return ;;
	"apptainer run",--app) :; return ;;
	"apptainer run",--shell | "apptainer run",-s) :; return ;;
	"apptainer run",--dns) :; return ;;
	"apptainer shell",--gpus) mapfile -t COMPREPLY < <(compgen -W "$(printf '%s\n' 1 2 4 8 all; berth gpus 2>/dev/null | awk '$NF ~ /^(GPU|MIG)-/ { print $NF }')" -- "$cur"); return ;;
	"apptainer shell",--bind | "apptainer shell",-B) :; return ;;
	"apptainer shell",--mount) :; return ;;
	"apptainer shell",--home | "apptainer shell",-H) :; return ;;
	"apptainer shell",--no-mount) :; return ;;
	"apptainer shell",--pwd | "apptainer shell",--cwd) :; return ;;
	"apptainer shell",--env) :; return ;;
	"apptainer shell",--env-file) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"); return ;;
	"apptainer shell",--overlay | "apptainer shell",-o) :; return ;;
	"apptainer shell",--scratch | "apptainer shell",-S) :; return ;;
	"apptainer shell",--workdir | "apptainer shell",-W) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	"apptainer shell",--network) mapfile -t COMPREPLY < <(compgen -W 'host none private rdma' -- "$cur"); return ;;
	"apptainer shell",--hostname) :; return ;;
	"apptainer shell",--app) :; return ;;
	"apptainer shell",--shell | "apptainer shell",-s) :; return ;;
	"apptainer shell",--dns) :; return ;;
	gpus,--format) :; return ;;
	leases,--format) :; return ;;
	"cdi generate",--output | "cdi generate",-o) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur"); return ;;
	info,--format | info,-f) :; return ;;
	version,--format | version,-f) :; return ;;
	esac
	case $verb,$cur in
	,-*) mapfile -t COMPREPLY < <(compgen -W '--config --engine --containerd-address --help -h --version -v' -- "$cur") ;;
	,*) mapfile -t COMPREPLY < <(compgen -W 'run ps exec stop kill wait rm logs attach inspect stats alloc adopt pull login logout images rmi prune system apptainer gpus topo leases release cdi discover repair setup guard doctor info version' -- "$cur") ;;
	system,-*) mapfile -t COMPREPLY < <(compgen -W '--help' -- "$cur") ;;
	system,*) mapfile -t COMPREPLY < <(compgen -W 'df prune' -- "$cur") ;;
	apptainer,-*) mapfile -t COMPREPLY < <(compgen -W '--help' -- "$cur") ;;
	apptainer,*) mapfile -t COMPREPLY < <(compgen -W 'exec run shell inspect pull' -- "$cur") ;;
	cdi,-*) mapfile -t COMPREPLY < <(compgen -W '--help' -- "$cur") ;;
	cdi,*) mapfile -t COMPREPLY < <(compgen -W 'generate remove list validate' -- "$cur") ;;
	setup,-*) mapfile -t COMPREPLY < <(compgen -W '--help' -- "$cur") ;;
	setup,*) mapfile -t COMPREPLY < <(compgen -W 'docker containerd podman' -- "$cur") ;;
	guard,-*) mapfile -t COMPREPLY < <(compgen -W '--help' -- "$cur") ;;
	guard,*) mapfile -t COMPREPLY < <(compgen -W 'on off status' -- "$cur") ;;
	run,-*) mapfile -t COMPREPLY < <(compgen -W '--ranks -n --gang --gpus-per-rank --bind-gpus --gpus -G --nics --device --entrypoint --env -e --env-file --workdir -w --user -u --group-add --tty -t --interactive -i --init --stop-signal --stop-timeout --mpi --runtime --volume -v --mount --tmpfs --read-only --rw --storage-opt --shm-size --cidfile --memory -m --memory-swap --memory-reservation --cpus --cpuset-cpus --cpuset-mems --cpu-shares -c --pids-limit --ulimit --oom-score-adj --cap-add --cap-drop --privileged --security-opt --ipc --pid --uts --userns --cgroupns --sysctl --name --hostname --domainname --network --net --publish -p --add-host --dns --dns-search --dns-option --dns-opt --label -l --label-file --annotation --detach -d --rm --restart --timeout --log-opt --pull --platform --wait --no-wait --help -h' -- "$cur") ;;
	run,*) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"; compgen -W "$(berth run --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	ps,-*) mapfile -t COMPREPLY < <(compgen -W '--all -a --quiet -q --filter -f --json --format --last -n --latest -l --no-trunc --help -h' -- "$cur") ;;
	exec,-*) mapfile -t COMPREPLY < <(compgen -W '--detach -d --env -e --env-file --interactive -i --tty -t --user -u --workdir -w --help -h' -- "$cur") ;;
	exec,*) mapfile -t COMPREPLY < <(compgen -W "$(berth exec --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	stop,-*) mapfile -t COMPREPLY < <(compgen -W '--time --timeout -t --help -h' -- "$cur") ;;
	stop,*) mapfile -t COMPREPLY < <(compgen -W "$(berth stop --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	kill,-*) mapfile -t COMPREPLY < <(compgen -W '--signal -s --help -h' -- "$cur") ;;
	kill,*) mapfile -t COMPREPLY < <(compgen -W "$(berth kill --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	wait,-*) mapfile -t COMPREPLY < <(compgen -W '--help -h' -- "$cur") ;;
	wait,*) mapfile -t COMPREPLY < <(compgen -W "$(berth wait --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	rm,-*) mapfile -t COMPREPLY < <(compgen -W '--force -f --volumes -v --help -h' -- "$cur") ;;
	rm,*) mapfile -t COMPREPLY < <(compgen -W "$(berth rm --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	logs,-*) mapfile -t COMPREPLY < <(compgen -W '--follow -f --since --until --tail -n --timestamps -t --help -h' -- "$cur") ;;
	logs,*) mapfile -t COMPREPLY < <(compgen -W "$(berth logs --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	attach,-*) mapfile -t COMPREPLY < <(compgen -W '--no-stdin --sig-proxy --detach-keys --help -h' -- "$cur") ;;
	attach,*) mapfile -t COMPREPLY < <(compgen -W "$(berth attach --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	inspect,-*) mapfile -t COMPREPLY < <(compgen -W '--why --format -f --help -h' -- "$cur") ;;
	inspect,*) mapfile -t COMPREPLY < <(compgen -W "$(berth inspect --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	stats,-*) mapfile -t COMPREPLY < <(compgen -W '--json --format --no-stream --no-trunc --help -h' -- "$cur") ;;
	stats,*) mapfile -t COMPREPLY < <(compgen -W "$(berth stats --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	alloc,-*) mapfile -t COMPREPLY < <(compgen -W '--wait --no-wait --help -h' -- "$cur") ;;
	alloc,*) mapfile -t COMPREPLY < <(compgen -W "$(printf '%s\n' 1 2 4 8 all; berth gpus 2>/dev/null | awk '$NF ~ /^(GPU|MIG)-/ { print $NF }')" -- "$cur") ;;
	adopt,-*) mapfile -t COMPREPLY < <(compgen -W '--wait --no-wait --export --json --help -h' -- "$cur") ;;
	pull,-*) mapfile -t COMPREPLY < <(compgen -W '--platform --quiet -q --help -h' -- "$cur") ;;
	login,-*) mapfile -t COMPREPLY < <(compgen -W '--username -u --password -p --password-stdin --help -h' -- "$cur") ;;
	logout,-*) mapfile -t COMPREPLY < <(compgen -W '--help -h' -- "$cur") ;;
	images,-*) mapfile -t COMPREPLY < <(compgen -W '--quiet -q --filter -f --digests --json --format --help -h' -- "$cur") ;;
	rmi,-*) mapfile -t COMPREPLY < <(compgen -W '--dry-run --force -f --help -h' -- "$cur") ;;
	rmi,*) mapfile -t COMPREPLY < <(compgen -W "$(berth rmi --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	prune,-*) mapfile -t COMPREPLY < <(compgen -W '--all -a --dry-run --force -f --filter --help -h' -- "$cur") ;;
	"system df",-*) mapfile -t COMPREPLY < <(compgen -W '--verbose -v --json --help -h' -- "$cur") ;;
	"system prune",-*) mapfile -t COMPREPLY < <(compgen -W '--all -a --force -f --filter --help -h' -- "$cur") ;;
	"apptainer exec",-*) mapfile -t COMPREPLY < <(compgen -W '--gpus --nv --nvccli --bind -B --mount --home -H --no-home --no-mount --pwd --cwd --contain -c --containall -C --compat --cleanenv -e --env --env-file --no-eval --writable-tmpfs --overlay -o --scratch -S --workdir -W --fakeroot -f --writable -w --ipc -i --uts --pid -p --no-init --net -n --network --hostname --no-umask --app --shell -s --dns --wait --no-wait --help -h' -- "$cur") ;;
	"apptainer run",-*) mapfile -t COMPREPLY < <(compgen -W '--gpus --nv --nvccli --bind -B --mount --home -H --no-home --no-mount --pwd --cwd --contain -c --containall -C --compat --cleanenv -e --env --env-file --no-eval --writable-tmpfs --overlay -o --scratch -S --workdir -W --fakeroot -f --writable -w --ipc -i --uts --pid -p --no-init --net -n --network --hostname --no-umask --app --shell -s --dns --wait --no-wait --help -h' -- "$cur") ;;
	"apptainer shell",-*) mapfile -t COMPREPLY < <(compgen -W '--gpus --nv --nvccli --bind -B --mount --home -H --no-home --no-mount --pwd --cwd --contain -c --containall -C --compat --cleanenv -e --env --env-file --no-eval --writable-tmpfs --overlay -o --scratch -S --workdir -W --fakeroot -f --writable -w --ipc -i --uts --pid -p --no-init --net -n --network --hostname --no-umask --app --shell -s --dns --wait --no-wait --help -h' -- "$cur") ;;
	"apptainer inspect",-*) mapfile -t COMPREPLY < <(compgen -W '--json -j --all --labels -l --deffile -d --runscript -r --startscript --test -t --environment -e --helpfile -H --help -h' -- "$cur") ;;
	"apptainer pull",-*) mapfile -t COMPREPLY < <(compgen -W '--help -h' -- "$cur") ;;
	gpus,-*) mapfile -t COMPREPLY < <(compgen -W '--json --format --no-trunc --watch --help -h' -- "$cur") ;;
	topo,-*) mapfile -t COMPREPLY < <(compgen -W '--json --no-trunc --help -h' -- "$cur") ;;
	leases,-*) mapfile -t COMPREPLY < <(compgen -W '--json --format --no-trunc --watch --help -h' -- "$cur") ;;
	release,-*) mapfile -t COMPREPLY < <(compgen -W '--force -f --help -h' -- "$cur") ;;
	release,*) mapfile -t COMPREPLY < <(compgen -W "$(berth release --generate-bash-completion 2>/dev/null)" -- "$cur") ;;
	"cdi generate",-*) mapfile -t COMPREPLY < <(compgen -W '--nvidia --replace --output -o --help -h' -- "$cur") ;;
	"cdi remove",-*) mapfile -t COMPREPLY < <(compgen -W '--help -h' -- "$cur") ;;
	"cdi list",-*) mapfile -t COMPREPLY < <(compgen -W '--json --help -h' -- "$cur") ;;
	"cdi validate",-*) mapfile -t COMPREPLY < <(compgen -W '--help -h' -- "$cur") ;;
	"cdi validate",*) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	discover,-*) mapfile -t COMPREPLY < <(compgen -W '--if-stale --json --processes --quiet -q --help -h' -- "$cur") ;;
	repair,-*) mapfile -t COMPREPLY < <(compgen -W '--break-lock --help -h' -- "$cur") ;;
	"setup docker",-*) mapfile -t COMPREPLY < <(compgen -W '--default --dry-run --remove --help -h' -- "$cur") ;;
	"setup containerd",-*) mapfile -t COMPREPLY < <(compgen -W '--default --dry-run --remove --help -h' -- "$cur") ;;
	"setup podman",-*) mapfile -t COMPREPLY < <(compgen -W '--default --dry-run --remove --help -h' -- "$cur") ;;
	"guard on",-*) mapfile -t COMPREPLY < <(compgen -W '--help -h' -- "$cur") ;;
	"guard off",-*) mapfile -t COMPREPLY < <(compgen -W '--help -h' -- "$cur") ;;
	"guard status",-*) mapfile -t COMPREPLY < <(compgen -W '--json --help -h' -- "$cur") ;;
	doctor,-*) mapfile -t COMPREPLY < <(compgen -W '--json --quiet -q --help -h' -- "$cur") ;;
	info,-*) mapfile -t COMPREPLY < <(compgen -W '--json --format -f --help -h' -- "$cur") ;;
	version,-*) mapfile -t COMPREPLY < <(compgen -W '--json --format -f --help -h' -- "$cur") ;;
	esac
	COMPREPLY=("${COMPREPLY[@]#"$there"}")
}

complete -F _berth berth
