package everyday

// forever is a task that ends when it is asked to.
const forever = `docker run -d --name job $box sh -c 'trap "exit 7" TERM; echo up; while :; do sleep 0.1; done' >/dev/null
`

// running waits until the task can be signalled.
const running = forever + `soon sh -c 'docker logs job | grep up'
`

// Tasks and their verbs.
var lifeUses = []use{
	{name: "an id", script: `docker run -d $box true | grep -c '^[0-9a-f]*$'`},
	{
		name: "the length of an id", script: `docker run -d $box true | tr -d '\n' | wc -c`,
		differs: "twelve digits are enough for one machine, and are what people see in either",
	},
	{
		name: "a task that can't be detached", script: `docker run -d --name job $box absent >/dev/null; echo $?; docker ps -aq | wc -l`,
		differs: "docker keeps a task that never was, with its name",
	},
	{name: "what runs", script: running + `docker ps -q | wc -l; docker stop -t 5 job; docker ps -q | wc -l; docker ps -aq | wc -l`},
	{name: "labels", script: `docker run -d --label a=b --label c $box true >/dev/null; docker run -d --label a=x $box true >/dev/null
for l in a a=b a=x c d; do docker ps -aq --filter label=$l | wc -l; done`},
	{name: "an image's labels", script: `docker run -d --label of=task $full >/dev/null; docker run -d $full >/dev/null; docker run -d $box true >/dev/null; docker ps -aq --filter label=of=image | wc -l; docker images -q --filter label=of=image | wc -l`},
	{name: "several labels", script: `docker run -d --label a=b $box true >/dev/null; docker run -d --label a=b --label c $box true >/dev/null; docker ps -aq --filter label=a=b --filter label=c | wc -l`},
	{name: "filters", script: `docker run -d --name one $box true >/dev/null; docker run -d --name two $box false >/dev/null; docker wait one two
for f in name=o name=one name=three status=exited exited=1 status=running; do docker ps -aq --filter $f | wc -l; done`},
	{
		name: "an unknown filter", script: `docker ps --filter colour=red`,
		differs: "wrong usage is 2, what couldn't be done is 1",
	},
	{name: "logs", script: `docker run -d --name job $box sh -c 'echo out; echo err >&2; printf end' >/dev/null; docker wait job; docker logs job`},
	{name: "logs of two streams", script: `docker run -d --name job $box sh -c 'echo out; echo err >&2' >/dev/null; docker wait job; docker logs job 2>/dev/null`},
	{name: "logs that go on", script: `docker run -d --name job $box sh -c 'for i in 1 2 3; do echo $i; sleep 0.2; done' >/dev/null; docker logs -f job`},
	{name: "the last of the logs", script: `docker run -d --name job $box sh -c 'seq 5' >/dev/null; docker wait job; docker logs --tail 2 job; docker logs -n 0 job`},
	{name: "logs since then", script: `docker run -d --name job $box echo new >/dev/null; docker wait job; docker logs --since 1h job; docker logs --until 1h job; docker logs --since 2100-01-01 job`},
	{name: "logs with times", script: `docker run -d --name job $box echo line >/dev/null; docker wait job; docker logs -t job`},
	{name: "logs of nothing", script: `docker logs absent`},
	{name: "a stop that is heard", script: running + `docker stop job; docker wait job`},
	{name: "a stop that isn't heard", script: `docker run -d --name job $box sh -c 'trap "" TERM; echo up; while :; do sleep 0.1; done' >/dev/null
soon sh -c 'docker logs job | grep up'; docker stop -t 1 job; docker wait job`},
	{name: "a stop of what has ended", script: `docker run -d --name job $box true >/dev/null; docker wait job; docker stop job`},
	{name: "a stop of several", script: forever + `docker stop job absent`},
	{name: "another signal to stop", script: `docker run -d --stop-signal INT --name job $box sh -c 'trap "exit 8" INT; echo up; while :; do sleep 0.1; done' >/dev/null
soon sh -c 'docker logs job | grep up'; docker stop job; docker wait job`},
	{name: "an image's signal to stop", script: `docker run -d --name job --entrypoint sh $full -c 'trap "exit 9" USR1; echo up; while :; do sleep 0.1; done' >/dev/null
soon sh -c 'docker logs job | grep up'; docker stop job; docker wait job`},
	{name: "a kill", script: forever + `docker kill job; docker wait job`},
	{name: "another signal", script: `docker run -d --name job $box sh -c 'trap "exit 10" HUP; echo up; while :; do sleep 0.1; done' >/dev/null
soon sh -c 'docker logs job | grep up'; docker kill -s HUP job; docker wait job`},
	{
		name: "an unknown signal", script: forever + `docker kill -s NONE job`,
		differs: "wrong usage is 2, what couldn't be done is 1",
	},
	{name: "a kill of what has ended", script: `docker run -d --name job $box true >/dev/null; docker wait job; docker kill job`},
	{name: "a wait for several", script: `docker run -d --name first $box sh -c 'sleep 0.3; exit 1' >/dev/null; docker run -d --name second $box sh -c 'exit 2' >/dev/null; docker wait first second`},
	{name: "a removal", script: `docker run -d --name job $box true >/dev/null; docker wait job; docker rm job; docker logs job`},
	{name: "a removal of what runs", script: forever + `docker rm job; echo $?; docker rm -f job`},
	{name: "a removal of nothing", script: `docker rm absent; docker rm -f absent; echo $?`},
	{name: "-d and --rm", script: `docker run -d --rm --name job $box sleep 0.2 >/dev/null; soon sh -c '[ -z "$(docker ps -aq)" ]'; docker ps -aq`},
	{name: "a name twice", script: forever + `docker run --rm --name job $box true`},
	{name: "a name again", script: `docker run --rm --name job $box echo one; docker run --rm --name job $box echo two`},
	{name: "a name that is none", script: `docker run --rm --name 'a b' $box true`},
	{name: "the beginning of an id", script: `id=$(docker run -d $box echo short); docker wait $(echo $id | cut -c 1-6); docker logs $(echo $id | cut -c 1-5)`},
	{name: "a task that isn't there", script: `docker stop absent`},
	{name: "a command in a task", script: forever + `docker exec job sh -c 'echo in; echo err >&2; exit 4'`},
	{name: "input of a command in a task", script: forever + `echo piped | docker exec -i job cat; echo lost | docker exec job cat`},
	{name: "a command's variables, user and directory", script: forever + `docker exec -e A=1 -u ann -w /tmp job sh -c 'echo $A $(id -u) $PWD'`},
	{name: "a task's variables in a command", script: `docker run -d --name job -e OF=task -w /tmp -u ann $box sleep 60 >/dev/null; docker exec job sh -c 'echo $OF $PWD $(id -u)'`},
	{
		name: "a command that isn't there, in a task", script: forever + `docker exec job absent`,
		differs: "docker prints the error where the command's output goes",
	},
	{
		name: "a command that can't be executed, in a task", script: forever + `docker exec job /etc`,
		differs: "docker prints the error where the command's output goes",
	},
	{name: "a command in the background", script: forever + `docker exec -d job touch /tmp/done; soon docker exec job ls /tmp/done && echo done`},
	{
		name: "a command in what has ended", script: `docker run -d --name job $box true >/dev/null; docker wait job; docker exec job true`,
		differs: "each failure of berth's own is 125, so that it is never taken for the command's",
	},
	{name: "a terminal of a command", script: forever + `docker exec -t job sh -c 'tty >/dev/null && echo one' | tr -d '\r'`},
	{name: "a terminal of a command in the background", script: forever + `docker exec -d -t job sh -c 'tty >/dev/null && touch /tmp/one'; soon docker exec job ls /tmp/one && echo one`},
	{name: "a terminal in the background", script: `docker run -d -t --name job $box sh -c 'tty; exit 3' >/dev/null; docker wait job; docker logs job | tr -d '\r'`},
	{name: "a command that is killed in a task", script: forever + `docker exec job sh -c 'kill -9 $$'`},
	{name: "what a task writes, from now on", script: `docker run -d --name job -v "$PWD:/w" $box sh -c 'until [ -e /w/go ]; do echo tick; sleep 0.1; done; exit 5' >/dev/null
docker attach --no-stdin job >out & soon grep tick out; touch go; wait $!; echo $?`},
	{name: "attach to what has ended", script: `docker run -d --name job $box true >/dev/null; docker wait job; docker attach job`},
	{name: "a signal to who runs it", script: `docker run --rm --name job $box sh -c 'trap "exit 11" TERM; echo up; while :; do sleep 0.1; done' >out & soon grep up out; kill $!; wait $!`},
	{name: "inspect", script: forever + `docker inspect job | head -c 1; docker inspect job | grep -ci '"name": "/*job"'`},
	{name: "inspect of nothing", script: `docker inspect absent`},
	{name: "a field of inspect", script: forever + `docker inspect -f '{{.State.Status}}' job; docker inspect --format '{{.Name}} {{.State.Running}} {{.State.ExitCode}} {{.Config.Image}}' job`},
	{name: "the process of a task", script: forever + `test -d /proc/$(docker inspect -f '{{.State.Pid}}' job) && echo there`},
	{name: "functions of inspect", script: `docker run -d --name job -e A=b --label k.l=v $box sh -c 'exit 3' >/dev/null; docker wait job
docker inspect -f '{{range .Config.Env}}{{println .}}{{end}}' job | grep A=; docker inspect -f '{{index .Config.Labels "k.l"}}, {{json .State.ExitCode}} {{if .State.Running}}up{{else}}down{{end}} {{.Path}} {{join .Args "+"}} {{json .Config.Cmd}}' job`},
	{name: "a bind mount that inspect shows", script: `docker run -d --name job -v "$PWD:/w:ro" $box true >/dev/null; docker inspect -f '{{range .Mounts}}{{.Type}} {{.Source}} {{.Destination}} {{.RW}}{{end}}' job`},
	{name: "the address of a task in the host's network", script: `docker run -d --network host --name job $box true >/dev/null
docker inspect -f '[{{.NetworkSettings.IPAddress}}] {{.HostConfig.NetworkMode}} {{range $name, $n := .NetworkSettings.Networks}}{{$name}} [{{$n.IPAddress}}]{{end}}' job`},
	{
		name: "a field that inspect doesn't have", script: forever + `docker inspect -f '{{.Nothing}}' job`,
		differs: "wrong usage is 2, what couldn't be done is 1",
	},
	{name: "a new start after a failure", script: `docker run -d --name job --restart on-failure:2 $box sh -c 'echo life; exit 6' >/dev/null
soon sh -c '[ "$(docker logs job | wc -l)" = 3 ]'; soon sh -c '[ -n "$(docker ps -aq --filter exited=6)" ]'; docker logs job`},
	{name: "no new start after success", script: `docker run -d --name job --restart on-failure $box echo life >/dev/null; soon sh -c '[ -n "$(docker ps -aq --filter exited=0)" ]'; docker logs job`},
	{name: "a new start whatever happens", script: `docker run -d --name job --restart always $box sh -c 'echo life; sleep 0.1' >/dev/null
soon sh -c '[ "$(docker logs job | wc -l)" -ge 2 ]'; echo $?; docker stop -t 1 job; docker ps -q | wc -l`},
	{name: "--rm and --restart", script: `docker run -d --rm --restart always $box true`},
	{name: "stats", script: forever + `docker stats --no-stream job | wc -l`},
	{name: "stats of nothing", script: `docker stats --no-stream absent`},
	{name: "images", script: `docker images -q | sort -u | wc -l`},
	{name: "a pull", script: `docker pull -q $full`},
	{name: "a pull of nothing", script: `docker pull -q ` + registry + `/box:absent`},
	{name: "a pull for each run", script: `docker run --rm --pull always $box echo new 2>/dev/null`},
	{name: "an image that is removed", script: `docker rmi $full >/dev/null 2>&1; echo $?; docker run --rm --pull never $full; docker pull -q $full`},
	{name: "an image that is removed while it runs", script: forever + `docker rmi $box >/dev/null; echo $?; docker pull -q $box`},
	{name: "what is said of an image that is removed", script: `docker rmi $full | sed 's/sha256:.*/sha256/; s/@.*/@/' | sort -u | grep -v @; docker pull -q $full`},
	{name: "an image that isn't there, by force", script: `docker rmi -f absent`},
	{name: "several images, and one isn't there", script: `docker rmi absent $full >/dev/null; echo $?; docker images -q --filter reference=$full; docker pull -q $full`},
	{name: "an image's name that a task uses, by force", script: forever + `docker rmi $box >/dev/null; echo $?; docker rmi -f $box | head -n 1; docker exec job echo runs; docker pull -q $box`},
	{name: "an image that isn't there to be removed", script: `docker rmi absent`},
	{name: "a task's name as docker lists it", script: forever + `docker ps --format '{{.Names}}'`},
	{name: "fields of what runs", script: `docker run -d --network host --name job --label a=b --label c -v "$PWD:/w" $box sh -c 'exit 3' >/dev/null; docker wait job
docker ps -a --format '{{.Names}} {{.Image}} {{.Command}} {{.State}} {{.Labels}} {{.Label "a"}} [{{.Ports}}] {{.Networks}} {{upper .State}}'`},
	{name: "a table of what runs", script: forever + `docker ps --format 'table {{.Names}}\t{{.State}}\t{{.Label "x.some-key"}}' | sed 's/  */ /g; s/ $//'`},
	{name: "what runs as JSON", script: forever + `docker ps --format json | wc -l; docker ps --format '{{json .Names}}'`},
	{name: "a template that is none", script: `docker ps --format '{{.ID'`, differs: "wrong usage is 2, what couldn't be done is 1"},
	{name: "images by a template", script: `docker images --format '{{.Repository}} {{.Tag}}' | sort`},
	{
		name: "copies", script: forever + `docker cp job:/etc/passwd .`,
		differs: "-v binds a directory of the host, and berth exec copies: berth exec job cat FILE",
	},
	{
		name: "a pause", script: forever + `docker pause job`,
		differs: "what is paused holds its GPUs, and does nothing",
	},
	{
		name: "a task that is started again", script: `docker run -d --name job $box true >/dev/null; docker wait job; docker start job`,
		differs: "a task is one lease: berth run starts another",
	},
}
