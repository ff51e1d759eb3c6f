package apptainer

// compareNamespaces prints which namespaces of a container differ from the caller's. The flags follow, and $then.
const compareNamespaces = `for kind in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$kind; done >outside
different() { apptainer exec "$@" /images/bare.sif sh -c 'for kind in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$kind; done' >inside; echo "$*:" $(grep -v -x -F -f outside inside | cut -d: -f1); }
`

// removeLists removes what compareNamespaces leaves.
const removeLists = "\nrm inside outside"

// untilReady waits until the process in the background has written to the file out.
const untilReady = ` & pid=$!; n=0; until [ -s out ] || [ $n = 600 ]; do sleep 0.05; n=$((n + 1)); done; `

var processUses = []use{
	{name: "exit code", script: `apptainer exec /images/bare.sif sh -c 'exit 3'`},
	{name: "exit code 255", script: `apptainer exec /images/bare.sif sh -c 'exit 255'`},
	{name: "exit code of run", script: `apptainer run /images/bare.sif sh -c 'exit 4'`},
	{name: "exit code of shell", script: `echo 'exit 5' | apptainer shell /images/bare.sif`},
	{name: "exit code with --pid", script: `apptainer exec --pid /images/bare.sif sh -c 'exit 3'; echo $?; apptainer exec --pid --no-init /images/bare.sif sh -c 'exit 3'`},
	{name: "a command that isn't found", script: `apptainer exec /images/bare.sif nosuch`},
	{name: "a path that isn't found", script: `apptainer exec /images/bare.sif /no/such`},
	{name: "a command without execute permission", script: `apptainer exec /images/bare.sif /etc/passwd`},
	{name: "a directory as command", script: `apptainer exec /images/bare.sif /tmp`},
	{name: "a script without an interpreter", script: `echo 'echo a' >s; chmod 755 s; apptainer exec /images/bare.sif ./s`},
	{name: "a script with a missing interpreter", script: `printf '#!/no/such\n' >s; chmod 755 s; apptainer exec /images/bare.sif ./s`, differs: "the image's shell executes the command"},
	{name: "a command of the working directory", script: `printf '#!/bin/sh\necho "mine: $@"\n' >s; chmod 755 s; apptainer exec /images/bare.sif ./s a 'b c' ''`},
	{name: "killed by SIGKILL", script: `exec apptainer exec /images/bare.sif sh -c 'kill -KILL $$'`},
	{name: "killed by SIGTERM", script: `exec apptainer exec /images/bare.sif sh -c 'kill -TERM $$'`},
	{name: "killed by SIGSEGV", script: `exec apptainer exec /images/bare.sif sh -c 'kill -SEGV $$'`, differs: "a program in Go can't end so: the exit code is that of a shell"},
	{name: "killed with --pid", script: `exec apptainer exec --pid /images/bare.sif sh -c 'kill -KILL $$'`},
	{name: "SIGTERM to the launcher", script: `apptainer exec /images/bare.sif sh -c 'trap "echo got TERM; exit 7" TERM; echo ready; sleep 20 & wait' >out` + untilReady + `kill -TERM $pid; wait $pid; echo $?`},
	{name: "SIGINT to the launcher", script: `apptainer exec /images/bare.sif sh -c 'trap "echo got INT; exit 7" INT; echo ready; sleep 3 & wait' >out` + untilReady + `kill -INT $pid; wait $pid; echo $?`, differs: "a command in the background of a script ignores SIGINT, as other commands do there"},
	{name: "SIGUSR1 and SIGHUP to the launcher", script: `apptainer exec /images/bare.sif sh -c 'trap "echo got USR1" USR1; trap "echo got HUP; exit 7" HUP; echo ready; sleep 20 & wait; wait' >out` + untilReady + `kill -USR1 $pid; until grep -q USR1 out; do sleep 0.05; done; kill -HUP $pid; wait $pid; echo $?`},
	{name: "SIGTERM without a handler", script: `apptainer exec /images/bare.sif sh -c 'echo ready; exec sleep 20' >out` + untilReady + `kill -TERM $pid; wait $pid; echo $?`},
	{name: "SIGTERM with --pid", script: `apptainer exec --pid /images/bare.sif sh -c 'echo ready; exec sleep 20' >out` + untilReady + `kill -TERM $pid; wait $pid; echo $?`},
	{name: "SIGKILL to the launcher", script: `apptainer exec /images/bare.sif sh -c 'echo $$; exec sleep 20' >out` + untilReady + `kill -KILL $pid; wait $pid 2>/dev/null; inside=$(cat out); rm out; n=0; while kill -0 $inside 2>/dev/null && [ $n -lt 100 ]; do sleep 0.05; n=$((n + 1)); done; kill -0 $inside 2>/dev/null && echo lives || echo ended`},
	{name: "a process in the background", script: `apptainer exec /images/bare.sif sh -c 'sleep 20 >/dev/null 2>&1 & echo $! >pid'; kill $(cat pid) && echo lived; rm pid`},
	{name: "a process in the background with --pid", script: `apptainer exec --pid /images/bare.sif sh -c 'trap "" HUP; (sleep 1; touch later) >/dev/null 2>&1 & echo ended'`},
	{name: "namespaces", script: compareNamespaces + `different; different --pid; different --ipc; different --contain; different --containall; different --uts; different --hostname a; different --userns; different --net --network none; different --containall --no-pid` + removeLists},
	{name: "--pid", script: `apptainer exec --pid /images/bare.sif sh -c 'cat /proc/1/comm; [ $$ -gt 1 ] && echo not the first'`, differs: "the first process is berth"},
	{name: "--pid --no-init", script: `apptainer exec --pid --no-init /images/bare.sif sh -c 'echo $$; cat /proc/1/comm'`},
	{name: "a process group and session", script: `apptainer exec /images/bare.sif cut -d' ' -f5,6 /proc/self/stat >inside; cut -d' ' -f5,6 /proc/$$/stat | cmp - inside && echo equal; rm inside`},
	{name: "hostname", script: `apptainer exec /images/bare.sif hostname`},
	{name: "--hostname", script: `apptainer exec --hostname other /images/full.sif sh -c 'hostname; cat /etc/hostname /etc/hosts'`},
	{name: "stdin", script: `printf 'one\ntwo' | apptainer exec /images/bare.sif cat`},
	{name: "stdin is closed", script: `apptainer exec /images/bare.sif sh -c 'cat; echo end' <&-`},
	{name: "stdin from a file", script: `echo a >f; apptainer exec /images/bare.sif cat <f`},
	{name: "stdin of run and shell", script: `echo a | apptainer run /images/bare.sif cat; echo 'echo b' | apptainer shell /images/bare.sif`},
	{name: "stdout is closed", script: `apptainer exec /images/bare.sif sh -c 'echo a || echo failed >&2' >&-`},
	{name: "stderr of its own", script: `apptainer exec /images/bare.sif sh -c 'echo a; echo b >&2' 2>f; cat f | grep -v '^INFO'; rm f`},
	{name: "an open file", script: `echo a >f; apptainer exec /images/bare.sif sh -c 'cat <&7' 7<f`},
	{name: "an open pipe", script: `echo a | apptainer exec /images/bare.sif sh -c 'cat <&9' 9<&0 </dev/null`},
	{name: "open files with --containall", script: `echo a >f; apptainer exec -C /images/bare.sif sh -c 'cat <&7' 7<f`},
	{name: "umask", script: `umask 077; apptainer exec /images/bare.sif sh -c 'umask; touch a'`},
	{name: "umask with --no-umask", script: `umask 077; apptainer exec --no-umask /images/bare.sif sh -c 'umask; touch a'`},
	{name: "umask with --containall", script: `umask 027; apptainer exec -C /images/bare.sif umask; apptainer exec -C /images/bare.sif sh -c umask`, differs: "umask is no program"},
	{name: "limits", script: `ulimit -Sn 100; ulimit -f 1000; apptainer exec /images/bare.sif sh -c 'ulimit -Sn; ulimit -Hn; ulimit -f' >inside; { ulimit -Sn; ulimit -Hn; ulimit -f; } | diff - inside; rm inside`},
	{name: "nice value and OOM score", script: `nice -n 40 sh -c 'echo 500 >/proc/self/oom_score_adj; apptainer exec /images/bare.sif sh -c "cut -d\" \" -f19 /proc/self/stat; cat /proc/self/oom_score_adj"'`},
	{name: "cgroup", script: `apptainer exec /images/bare.sif cat /proc/self/cgroup >inside; diff /proc/self/cgroup inside && echo equal; rm inside`},
	{name: "command line in ps", script: `apptainer exec /images/bare.sif sh -c 'cat /proc/$$/cmdline | tr "\0" " "; echo'; apptainer exec /images/bare.sif cat /proc/self/comm`, differs: "the first argument is what was typed, as under a shell"},
	{name: "environment in proc", script: `apptainer exec /images/bare.sif sh -c 'cat /proc/$$/environ | tr "\0" "\n" | sort | grep APPTAINER'`},
	{name: "the parent process", script: `apptainer exec /images/bare.sif sh -c 'echo $PPID' >inside & pid=$!; wait $pid; [ $(cat inside) = $pid ] && echo the launcher; rm inside`},
	{name: "a reader that ends", script: `apptainer exec /images/bare.sif sh -c 'while echo a; do :; done' | head -n 1`},
	{name: "much output", script: `apptainer exec /images/bare.sif head -c 20000000 /dev/zero | wc -c`},
	{name: "much input", script: `head -c 20000000 /dev/zero | apptainer exec /images/bare.sif wc -c`},
	{name: "input is left for the next program", script: `printf 'one\ntwo\n' | { apptainer exec /images/bare.sif true; cat; }`},
	{name: "the server's processes", script: `apptainer exec /images/bare.sif sh -c 'kill -0 '$$' && echo seen'; apptainer exec -C /images/bare.sif sh -c '[ -d /proc/'$$' ] || echo not seen'`},
	{name: "orphans with --pid", script: `apptainer exec --pid /images/bare.sif sh -c '(sh -c "exit 3" & ) ; sleep 0.2; grep -l -s "^State:.Z" /proc/[0-9]*/status; echo end'`},
	{name: "a program of the home directory", script: `cp /images/plain/bin/busybox .; apptainer exec /images/debian.sif ./busybox echo a; rm busybox`},
	{name: "glibc's look-ups", script: `apptainer exec /images/debian.sif sh -c 'getent passwd ann; getent group lab; getent hosts ip6-allnodes; echo ~ann'`},
	{name: "many arguments", script: `apptainer exec /images/bare.sif sh -c 'echo $#' $(seq 10000)`},
	{name: "arguments with special characters", script: `apptainer exec /images/bare.sif sh -c 'for a; do echo "<$a>"; done' sh 'a  b' '' '$HOME' '"' "'" '\n' '*' 'ä' '
'`},
	{name: "ten at a time", script: `for n in 0 1 2 3 4 5 6 7 8 9; do apptainer exec /images/bare.sif echo $n & done | sort`},
	{name: "one inside the home of another", script: `cp /images/bare.sif .; apptainer exec bare.sif sh -c 'cat bare.sif | wc -c' | grep -c .`},
}
