package apptainer

// listNames lists instances without their pids.
const listNames = `names() { apptainer instance list "$@" | awk '{ print $1, $NF }'; }
`

// awaitFile waits until a file has content.
const awaitFile = `await() { n=0; until [ -s "$1" ] || [ $n = 600 ]; do sleep 0.05; n=$((n + 1)); done; }
`

// logs is the directory with the logs of instances.
const logs = `logs=~/.apptainer/instances/logs/$(hostname)/ann
`

// code prints the exit code of a command without its output, which has the help of a wrong command line.
const code = `code() { "$@" >/dev/null 2>&1; echo $?; }
`

var instanceUses = []use{
	{name: "instance: start, list, stop", script: listNames + `apptainer instance start /images/bare.sif one; echo $?; names; apptainer instance stop one; echo $?; names`},
	{name: "instance: startscript", script: logs + awaitFile + `apptainer instance start --env A=x /images/full.sif one a 'b c' '$HOME'; await $logs/one.out; sleep 0.2; cat $logs/one.out; apptainer instance stop one`},
	{name: "instance: run", script: logs + awaitFile + `apptainer instance run /images/full.sif one a 'b c'; await $logs/one.out; sleep 0.2; cat $logs/one.out; apptainer exec instance://one echo lives on; apptainer instance stop one`},
	{name: "instance: run of an OCI image", script: logs + awaitFile + `apptainer instance run /images/entry.sif one a b; await $logs/one.out; cat $logs/one.out; apptainer instance stop one`},
	{name: "instance: logs are added to", script: logs + awaitFile + `for n in 1 2; do apptainer instance run /images/bare.sif one sh -c 'echo a; echo b >&2'; await $logs/one.err; sleep 0.2; apptainer instance stop one; done 2>/dev/null; cat $logs/one.out; grep b $logs/one.err`},
	{name: "instance: list of logs", script: `apptainer instance start /images/bare.sif one; apptainer instance list --logs | sed 's/   *[0-9][0-9]*   */ N /; s/   */ /g'; apptainer instance stop one`},
	{name: "instance: list in JSON", script: `apptainer instance list --json; apptainer instance start /images/bare.sif one; apptainer instance list -j | sed 's/"pid": [0-9]*/"pid": N/'; apptainer instance list -j -l; echo $?; apptainer instance stop one`},
	{name: "instance: patterns", script: listNames + `for name in a1 a2 b1; do apptainer instance start /images/bare.sif $name; done; names 'a*'; names '[ab]1'; names 'x*'; apptainer instance list '['; echo $?; apptainer instance stop 'a*' 2>/dev/null; echo $?; names; apptainer instance stop --all; echo $?; names`},
	{name: "instance: names", script: listNames + `for name in 'a b' a/b ../b 'a*' a@b; do apptainer instance start /images/bare.sif "$name"; echo "$name: $?"; done; apptainer instance start /images/bare.sif A_b-c.9; echo $?; names; apptainer instance stop --all`},
	{name: "instance: a name that is taken", script: `apptainer instance start /images/bare.sif one; apptainer instance start /images/full.sif one; echo $?; apptainer instance stop one; apptainer instance start /images/full.sif one; echo $?; apptainer instance stop one`},
	{name: "instance: missing words", script: code + `code apptainer instance start /images/bare.sif; code apptainer instance start; code apptainer instance stop; code apptainer instance stop a b; code apptainer instance list a b; code apptainer instance stop nosuch; code apptainer instance stop --all; code apptainer instance nosuch`},
	{name: "instance: flags of other verbs", script: code + `for flag in --pid --pwd=/tmp --shell=sh --no-pid --nosuch; do echo $flag; code apptainer instance start $flag /images/bare.sif one; done`},
	{name: "instance: no image", script: `apptainer instance start nosuch.sif one; echo $?; apptainer instance start instance://one two; echo $?; apptainer instance start /etc/passwd one; echo $?`},
	{name: "instance: without root", script: `apptainer instance list --user root; echo $?; apptainer instance stop --user root one; echo $?`},
	{name: "instance: signals that don't exist", script: code + `apptainer instance start /images/bare.sif one; apptainer instance stop -s NOSUCH one; echo $?; apptainer instance stop -s 99 one; echo $?; code apptainer instance stop -t x one; apptainer instance stop one`},
	{name: "instance: signals", script: awaitFile + `echo 'for s in INT TERM USR1; do trap "echo $s >got; exit" $s; done; echo ready >ready; while :; do sleep 0.05; done' >s
for flag in '' '-s TERM' '-s 15' '--signal=SIGUSR1' -F; do apptainer instance run /images/bare.sif one sh s; await ready; apptainer instance stop $flag one; echo "$flag: $(cat got)"; rm -f got ready; done 2>/dev/null`},
	{name: "instance: a timeout", script: awaitFile + `echo 'trap "" INT; echo ready >ready; while :; do sleep 0.05; done' >s; apptainer instance run /images/bare.sif one sh s; await ready; apptainer instance stop -t 1 one; echo $?; apptainer exec instance://one true 2>/dev/null; echo $?`},
	{name: "instance: namespaces", script: compareNamespaces + `inside() { apptainer exec instance://one sh -c 'for kind in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$kind; done' >inside; echo "$*:" $(grep -v -x -F -f outside inside | cut -d: -f1); apptainer instance stop one; }
for flag in --nv --ipc --contain --containall --compat --uts '--net --network none'; do apptainer instance start $flag /images/bare.sif one; inside $flag; done` + removeLists},
	{name: "instance: one set of namespaces", script: `apptainer instance start /images/bare.sif one; apptainer exec instance://one sh -c 'for kind in cgroup ipc mnt net pid user uts; do [ $(readlink /proc/self/ns/$kind) = $(readlink /proc/1/ns/$kind) ] && echo $kind; done'; apptainer instance stop one`},
	{name: "instance: processes", script: `apptainer instance run /images/bare.sif one sleep 100; apptainer exec instance://one sh -c 'ps -o comm | grep -c sleep; [ $$ -gt 1 ] && echo not the first'; apptainer instance stop one`},
	{name: "instance: rights", script: `apptainer instance start /images/bare.sif one; apptainer exec instance://one sh -c 'id; grep -E "^(Cap|NoNewPrivs)" /proc/self/status; touch /x'; apptainer instance stop one`, differs: "nsenter keeps no capability, so the bounding set can't be emptied; no program gains one"},
	{name: "instance: environment", script: `apptainer instance start --env STARTED=x /images/full.sif one; MINE=a apptainer exec --env FLAG=b,LATE=c instance://one env | sort | grep -v -E '^(_|SHLVL)='; apptainer exec --cleanenv instance://one env | sort | grep -v -E '^(_|SHLVL)='; apptainer instance stop one`},
	{name: "instance: environment of its processes", script: logs + awaitFile + `echo 'echo $A $APPTAINER_INSTANCE $SINGULARITY_INSTANCE $APPTAINER_COMMAND $MINE' >s; MINE=m apptainer instance run --env A=x /images/bare.sif one sh s; await $logs/one.out; cat $logs/one.out; apptainer instance stop one`},
	{name: "instance: working directory", script: `mkdir d; apptainer instance start /images/bare.sif one; cd d; apptainer exec instance://one pwd; apptainer exec --contain instance://one pwd; apptainer exec --pwd /etc instance://one pwd; cd /opt/host; apptainer exec instance://one pwd; cd /; apptainer exec instance://one pwd; apptainer exec --pwd /nosuch instance://one pwd; echo $?; apptainer instance stop one`},
	{name: "instance: flags that come too late", script: `mkdir d; apptainer instance start /images/bare.sif one; for flag in "-B $PWD/d:/mnt/d" --writable-tmpfs --nv --hostname=x --fakeroot --pid --ipc; do apptainer exec $flag instance://one sh -c 'touch /x; ls -d /mnt/d; id -u; hostname'; done; apptainer instance stop one`},
	{name: "instance: run and shell in it", script: `apptainer instance start /images/full.sif one; apptainer run instance://one a 'b  c'; apptainer run --app tool instance://one x; echo 'echo $APPTAINER_COMMAND; exit 5' | apptainer shell instance://one; echo $?; apptainer instance stop one`},
	{name: "instance: exit codes", script: code + `apptainer instance start /images/bare.sif one; apptainer exec instance://one sh -c 'exit 3'; echo $?; apptainer exec instance://one nosuch; echo $?; apptainer exec instance://one /nosuch; echo $?; apptainer exec instance://one /etc/passwd; echo $?; code apptainer exec instance://one; apptainer exec instance://nosuch true; echo $?; apptainer exec instance:// true; echo $?; apptainer instance stop one; exec apptainer exec instance://one true 2>/dev/null`},
	{name: "instance: killed by SIGKILL", script: `apptainer instance start /images/bare.sif one; sh -c 'exec apptainer exec instance://one sh -c "kill -KILL \$\$"' 2>/dev/null; echo $?; apptainer instance stop one`},
	{name: "instance: SIGTERM to the launcher", script: `apptainer instance start /images/bare.sif one; apptainer exec instance://one sh -c 'trap "echo got TERM; exit 7" TERM; echo ready; sleep 20 & wait' >out` + untilReady + `kill -TERM $pid; wait $pid 2>/dev/null; echo $?; apptainer instance stop -F one`, differs: "signals reach the command, as without an instance"},
	{name: "instance: SIGKILL to the launcher", script: `apptainer instance start /images/bare.sif one; apptainer exec instance://one sh -c 'echo ready; exec sleep 100' >out` + untilReady + `kill -KILL $pid; wait $pid 2>/dev/null; sleep 1; apptainer exec instance://one sh -c 'ps -o comm | grep -c sleep'; apptainer instance stop one; rm out`},
	{name: "instance: a process in the background", script: `apptainer instance start /images/bare.sif one; apptainer exec instance://one sh -c 'sleep 100 >/dev/null 2>&1 & echo started'; apptainer exec instance://one sh -c 'ps -o comm | grep -c sleep'; apptainer instance stop -F one`},
	{name: "instance: stdin, open files and limits", script: `apptainer instance start /images/bare.sif one; echo a | apptainer exec instance://one cat; echo b >f; apptainer exec instance://one sh -c 'cat <&7' 7<f; ulimit -n 100; umask 077; apptainer exec instance://one sh -c 'ulimit -n; umask'; apptainer exec --no-umask instance://one sh -c umask; apptainer exec instance://one cut -d' ' -f5,6 /proc/self/stat; apptainer instance stop one`},
	{name: "instance: containall", script: `apptainer instance start -C --env A=x /images/bare.sif one; apptainer exec instance://one sh -c 'pwd; echo $A$USER; ls -A ~ /tmp; touch /tmp/f'; apptainer exec instance://one ls /tmp; apptainer instance stop one`},
	{name: "instance: writable", script: `apptainer instance start --writable-tmpfs /images/bare.sif one; apptainer exec instance://one touch /x; apptainer exec instance://one ls /x; apptainer instance stop one`},
	{name: "instance: fakeroot", script: `apptainer instance start --fakeroot /images/bare.sif one; apptainer exec instance://one sh -c 'id -u; echo $HOME; pwd; touch f; chown 1:1 f; ls -ln f | cut -d" " -f1; rm f'; apptainer instance stop one`},
	{name: "instance: a PID file", script: `apptainer instance start --pid-file p /images/bare.sif one; apptainer instance list -j | grep -c "\"pid\": $(cat p),"; kill $(cat p); sleep 1; apptainer exec instance://one true 2>/dev/null; echo $?; rm p`},
	{name: "instance: an app", script: logs + awaitFile + `apptainer instance run --app tool /images/full.sif one a; await $logs/one.out; sleep 0.2; cat $logs/one.out; apptainer instance stop one`},
	{name: "instance: killed", script: `apptainer instance start --pid-file p /images/bare.sif one; apptainer exec instance://one sh -c 'echo ready; exec sleep 100' >out` + untilReady + `kill -KILL $(cat p); wait $pid; echo $?; apptainer exec instance://one true 2>/dev/null; echo $?; apptainer instance start /images/bare.sif one; echo $?; apptainer instance stop one; rm p out`},
	{name: "instance: a pipe behind its start", script: `apptainer instance start /images/bare.sif one 2>/dev/null | cat; echo $(apptainer instance start /images/bare.sif two 2>/dev/null); apptainer instance stop --all 2>/dev/null`},
	{name: "instance: a directory", script: listNames + `apptainer instance start /images/sandbox one; names; apptainer exec instance://one cat /data/file; apptainer instance stop one`},
}
