package engines

import (
	"compress/gzip"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// The same commands have the same result, whichever engine runs the tasks. Each difference is
// stated at its command, with the reason.
func TestConformance(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range [][]string{{"forky", "v2"}, {"bookworm", "v1"}} {
		h := newConformance(t, on[0], on[1])
		for _, engine := range []string{"native", "containerd"} {
			t.Run(strings.Join(append(on, engine), "/"), func(t *testing.T) {
				c := conformance{host: h, engine: engine}
				c.registry = h.registry(t, filepath.Join(h.dir, "layout"))
				for _, s := range stories {
					t.Run(s.name, func(t *testing.T) { c.runStory(t, s) })
				}
				t.Run("killed at any moment", c.kill)
				if engine == "containerd" {
					t.Run("the guide", c.follow)
				}
				t.Run("nothing is left", c.checkClean)
			})
		}
	}
}

// story is a sequence of commands with their expected results.
type story struct {
	name  string
	steps []step
}

// step is one command. Its arguments and the expected results may contain {image}, {dir},
// {registry} and {work}, and {name}, which each story has of its own in each engine.
type step struct {
	words string // arguments of berth, as a shell reads them; a line that begins with "$ " is a shell's
	code  int
	// out and err are patterns for the whole output; "" means nothing.
	out, err string
	// on has the expected results of other engines.
	on map[string]differs
}

// differs is an intended difference.
type differs struct {
	why      string
	code     int
	out, err string
}

// conformance is an engine on a host.
type conformance struct {
	*host
	engine, registry string
}

func (c conformance) runStory(t *testing.T, s story) {
	name := strings.ReplaceAll(s.name, " ", "-")
	fill := strings.NewReplacer("{image}", "oci:"+filepath.Join(c.dir, "layout"), "{layout}", filepath.Join(c.dir, "layout"),
		"{dir}", filepath.Join(c.dir, "root-"+c.engine), "{registry}", c.registry, "{name}", name, "{work}", c.dir, "{berth}", shared.Berth+" --engine "+c.engine)
	defer c.run(t, "sh", "-c", fill.Replace("{berth} rm -f {name} >/dev/null 2>&1"))
	for _, step := range s.steps {
		want := differs{code: step.code, out: step.out, err: step.err}
		if d, ok := step.on[c.engine]; ok {
			want = d
		}
		line, ok := strings.CutPrefix(step.words, "$ ")
		if !ok {
			line = "{berth} " + line
		}
		got := c.run(t, "timeout", "60", "sh", "-c", fill.Replace(line))
		if got.code != want.code || !matchesPattern(fill.Replace(want.out), got.out) || !matchesPattern(fill.Replace(want.err), got.err) {
			t.Fatalf("%s\nexit code %d, wanted %d\nout: %s\nwanted: %s\nerr: %s\nwanted: %s", line, got.code, want.code, got.out, want.out, got.err, want.err)
		}
	}
}

// follow runs the commands that the guide shows.
func (c conformance) follow(t *testing.T) {
	for line := range strings.Lines(shown(t, "console berth containerd")) {
		words := strings.Fields(strings.NewReplacer("registry.example/train:1", c.registry+"/train", "$ berth ", "$ "+shared.Berth+" ").Replace(line))
		c.do(t, words[1:]...)
	}
}

// matchesPattern reports whether the whole text matches; the last line's end is ignored.
func matchesPattern(pattern, text string) bool {
	return regexp.MustCompile(`^(?s:` + pattern + `)$`).MatchString(strings.TrimSuffix(text, "\n"))
}

// checkClean checks that no story has left anything.
func (c conformance) checkClean(t *testing.T) {
	c.do(t, shared.Berth, "--engine", c.engine, "prune", "--all")
	if got := c.do(t, shared.Berth, "--engine", c.engine, "ps", "-aq"); got != "" {
		t.Errorf("tasks are left: %s", got)
	}
	eventually(t, func() string {
		left := c.do(t, "sh", "-c", `find /sys/fs/cgroup -type d -path '*/berth/????????????' 2>/dev/null; find /var/lib/berth/tasks /var/lib/berth/containerd/*/* -mindepth 1 2>/dev/null; true`)
		if left != "" {
			return "left: " + left
		}
		return ""
	})
	if got := c.live(t); len(got) > 0 {
		t.Errorf("leases are left: %v", got)
	}
	if c.engine == "containerd" {
		eventually(t, func() string {
			if left := c.do(t, "ctr", "-n", "berth", "container", "ls", "-q") + c.do(t, "ctr", "-n", "berth", "snapshot", "ls"); strings.Contains(left, "Active") {
				return "left in containerd: " + left
			}
			return ""
		})
	}
}

// clients that are killed at any moment leave nothing that rm -f and the next run don't remove.
func (c conformance) kill(t *testing.T) {
	berth := shared.Berth + " --engine " + c.engine
	for delay := 20; delay < 500; delay += 40 {
		c.run(t, "sh", "-c", fmt.Sprintf("%s run --name killed --gpus 1 oci:%s/layout sleep 100 & sleep 0.%03d; kill -9 $!", berth, c.dir, delay))
		c.do(t, "sh", "-c", berth+" rm -f killed")
		c.do(t, "sh", "-c", fmt.Sprintf("%s run --name killed --gpus 8 oci:%s/layout true", berth, c.dir))
	}
}

// newConformance starts a host that has both engines.
func newConformance(t *testing.T, suite, cgroup string) *host {
	t.Helper()
	h := startFor(t, "-conformance", suite, cgroup)
	h.once("conformance", func() {
		newConformingHost(t, h)
		h.daemon(t, "containerd")
		h.until(t, "ctr", "version")
	})
	return h
}

// newConformingHost has a host ready for both engines: all but containerd, which is to be started.
func newConformingHost(t *testing.T, h *host) {
	t.Helper()
	for _, dir := range []string{"/var/lib/containerd", "/var/lib/berth"} { // overlays can't be made on an overlay
		h.do(t, "sh", "-c", "mkdir -p "+dir+" && busybox mount -t tmpfs tmpfs "+dir)
	}
	h.do(t, shared.Berth, "discover", "--quiet")
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(shared.Dir, "berth-containerd"), "github.com/berth-gpu/berth/cmd/berth-containerd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build berth-containerd: %v\n%s", err, out)
	}
	layout := filepath.Join(h.dir, "layout")
	labelled(t, layout, "../../.cache/image/busybox")
	h.do(t, "tar", "-C", layout, "-cf", layout+".tar", ".")
	if out, err := exec.Command("skopeo", "copy", "-q", "oci:"+layout, "docker-archive:"+layout+".docker.tar:train:1").CombinedOutput(); err != nil {
		t.Fatalf("skopeo: %v\n%s", err, out)
	}
	for _, engine := range []string{"native", "containerd"} {
		bin := filepath.Join(h.dir, "root-"+engine, "bin")
		h.do(t, "sh", "-c", "mkdir -p "+bin+" && cp /bin/busybox "+bin+" && ln -s busybox "+bin+"/sh && ln -s busybox "+bin+"/touch")
	}
}

// registry serves a layout at the loopback address of the host. labelled writes an image with one
// layer again, with a label.
func labelled(t *testing.T, to, from string) {
	t.Helper()
	blobs, err := filepath.Glob(from + "/blobs/sha256/*")
	rig.Must(t, err)
	for _, blob := range blobs {
		f, err := os.Open(blob)
		rig.Must(t, err)
		defer f.Close()
		if layer, err := gzip.NewReader(f); err == nil {
			rig.Must(t, oci.Write(to, oci.Image{Tag: "latest", Layers: []oci.Layer{{Tar: layer, Compression: "gzip"}}, Config: ispec.ImageConfig{
				Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"/bin/sh"},
				Labels: map[string]string{"of": "image", "both": "image"},
			}}))
			return
		}
	}
	t.Fatalf("%s has no layer", from)
}

func (h *host) registry(t *testing.T, layout string) (name string) {
	t.Helper()
	return h.registryWith(t, layout, func(*fake.Registry) {})
}

func (h *host) registryWith(t *testing.T, layout string, edit func(*fake.Registry)) (name string) {
	t.Helper()
	done := make(chan error, 1)
	var r *fake.Registry
	go func() {
		runtime.LockOSThread() // never unlocked: it is in another network
		// The way to a path of the host begins with its first process.
		ns, err := os.Open(filepath.Join(strings.TrimSuffix(h.Path(""), "/root"), "ns/net"))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err == nil {
			r = fake.Serve(t, layout)
			r.Change(edit)
		}
		done <- err
	}()
	rig.Must(t, <-done)
	return r.Host
}

// id is a task's.
const id = `[0-9a-f]{12}`

var stories = []story{
	{"exit code and output", []step{
		{words: `run {image} sh -c 'echo out; echo err >&2; exit 3'`, code: 3, out: "out", err: "err"},
		{words: `run {image} sh -c 'kill -9 $$' </dev/null`, code: 0},
		{words: `run {image} sh -c 'sh -c "kill -9 \$\$"; exit $?'`, code: 137, err: ".*"},
		{words: `run {image} true`},
	}},
	{"input", []step{
		{words: `$ echo typed | {berth} run -i {image} cat`, out: "typed"},
		{words: `$ echo typed | {berth} run {image} cat`},
	}},
	{"terminals at which nobody sits", []step{
		{words: `$ {berth} run -t {image} sh -c 'tty; echo err >&2; exit 3' | tr -d '\r'`, out: "/dev/pts/0\nerr"},
		{words: `run -it {image} true`, code: 125, err: `berth: standard input is no terminal: leave out -t .*`},
		{words: `run -dt --name {name} {image} sh -c 'tty; sleep 100'`, out: id},
		{words: `$ {berth} exec -t {name} sh -c 'tty >/dev/null && printf one; exit 4'; echo " $?"`, out: "one 4"},
		{words: `exec -it {name} true`, code: 125, err: `berth: task {name}: standard input is no terminal: leave out -t .*`},
		{words: `exec -dt {name} sh -c 'tty >/dev/null && echo read by nobody && touch /tmp/done'`},
		{words: `$ sleep 0.5; {berth} exec {name} ls /tmp/done`, out: "/tmp/done"},
		{words: `rm -f {name}`, out: "{name}"},
	}},
	{"what can't be run", []step{
		{words: `run {image} nosuch`, code: 127, err: `berth: command not found: "nosuch" is nowhere in PATH .*`},
		{words: `run {image} /etc`, code: 126, err: `berth: command can't be executed: /etc is a directory`},
		{words: `run {image} ./nosuch`, code: 127, err: `berth: command not found: .*`},
		{words: `run dir:/nosuch true`, code: 125, err: `berth: dir:/nosuch is no image: there is no such file; .*`},
		{words: `run --network nosuch {image} true`, code: 125, err: `berth: network "nosuch" is not known: there are host, where .*, and none`},
		{words: `run --nosuch {image} true`, code: 125, err: `berth: there is no flag --nosuch.*`},
		{words: `run -u nosuch {image} true`, code: 125, err: `berth: .*nosuch.*`},
		{words: `run --rw {image} true`, code: 125, err: `berth: .*writing to the image needs a directory image`},
	}},
	{"devices", []step{
		{words: `run --gpus 2 {image} sh -c 'ls /dev | grep -c nvidia[0-9]'`, out: "2"},
		{words: `run --gpus device=3 {image} sh -c 'ls /dev | grep nvidia[0-9]'`, out: "nvidia3"},
		{words: `run --device berth/gpus=1 {image} sh -c 'ls /dev | grep -c nvidia[0-9]'`, out: "1"},
		{words: `run {image} sh -c 'ls /dev | grep -c nvidia'`, code: 1, out: "0"},
		{words: `run --gpus 20 {image} true`, code: 125, err: `berth: request 20: node has 8 GPUs, 20 asked; berth gpus lists the node's devices`},
		{words: `run -d --name {name} --gpus 7 {image} sleep 100`, out: id},
		{words: `run --gpus 2 {image} true`, code: 75, err: `berth: request 2: 2 asked, 1 of 8 free; held: GPU [0-9,]+ by (run|containerd) {name} \([0-9a-f]{12}\) since .*; wait for them with --wait, or see berth leases`},
		{words: `run --gpus 2 --wait=1s {image} true`, code: 75, err: `.*berth: request 2: 2 asked, 1 of 8 free.*; waited [0-9.]+s; see berth leases`},
		{words: `ps --filter gpu=0 --filter name={name} -q`, out: id},
		{words: `exec {name} sh -c 'ls /dev | grep -c nvidia[0-9]'`, out: "7"},
		{words: `inspect --why {name}`, out: `CONTAINER +KIND +WHAT +WHY\n.*/dev/nvidia.*`},
		{words: `rm -f {name}`, out: "{name}"},
		{words: `run --gpus 8 {image} true`},
	}},
	{"settings", []step{
		{words: `run -e A=b --hostname h -w /tmp -u 5:6 {image} sh -c 'echo $A; hostname; pwd; id -u; id -g'`, out: "b\nh\n/tmp\n5\n6"},
		{words: `run --read-only {image} touch /new`, code: 1, err: ".*Read-only file system"},
		{words: `run --tmpfs /mem -v {work}:/bound:ro {image} sh -c 'touch /mem/x && ls /bound/layout.tar && touch /bound/x'`, code: 1, out: "/bound/layout.tar", err: ".*Read-only file system"},
		{words: `run --cap-drop ALL {image} sh -c 'grep CapEff /proc/self/status'`, out: `CapEff:\s0000000000000000`},
		{words: `run {image} sh -c 'grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status; grep ^Seccomp: /proc/self/status'`, out: `CapEff:\s[0-9a-f]{16}\nNoNewPrivs:\s1\nSeccomp:\s2`},
		{words: `run --ulimit nofile=77 {image} sh -c 'ulimit -n'`, out: "77"},
		{words: `run --entrypoint /bin/echo {image} hi`, out: "hi"},
		{words: `run --network none {image} sh -c 'ls /sys/class/net'`, out: "lo"},
		{words: `run --init {image} sh -c 'cat /proc/1/comm'`, out: "init"},
		{words: `run --add-host a:1.2.3.4 --name {name} {image} sh -c 'grep 1.2.3.4 /etc/hosts; cat /etc/hostname'`, out: "1.2.3.4\ta\n{name}"},
		{words: `run --annotation berth.gpus=2 {image} true`, code: 125, err: `berth: --annotation berth.gpus: it is for other engines; .*`},
	}},
	{"a task that lasts", []step{
		{words: `run -d --name {name} --label a=b --label both=task --env X=y {image} sh -c 'trap "exit 5" TERM; echo one; sleep 0.3; echo two >&2; while :; do sleep 0.1; done'`, out: id},
		{words: `run -d --name {name} {image} true`, code: 125, err: `berth: task [0-9a-f]{12} is called {name} already: the name is taken; berth rm -f {name} ends that task and makes it free`},
		{words: `ps --filter name={name}`, out: `ID +IMAGE +COMMAND +CREATED +STATUS +GPUS +NAME\n[0-9a-f]{12} +\S+ +"sh -c .* +\d+s ago +up \d+s +- +{name}`},
		{words: `ps -q --filter label=a=b`, out: id},
		{words: `ps -q --filter label=a=c`},
		{words: `ps -q --filter label=of=image --filter label=both=task --filter name={name}`, out: id},
		{words: `ps -q --filter label=both=image`},
		{words: `exec {name} sh -c 'echo $X; echo err >&2; exit 4'`, code: 4, out: "y", err: "err"},
		{words: `$ echo typed | {berth} exec -i {name} cat`, out: "typed"},
		{words: `exec -u 7 -w /tmp -e Z=z {name} sh -c 'id -u; pwd; echo $Z'`, out: "7\n/tmp\nz"},
		{words: `exec {name} nosuch`, code: 127, err: `berth: task {name}: command not found: "nosuch" is nowhere in PATH .*`},
		{words: `exec {name} /etc`, code: 126, err: `berth: task {name}: command can't be executed: /etc is a directory`},
		{words: `exec -d {name} sleep 1`},
		{words: `$ sleep 0.5; {berth} logs {name}`, out: "one", err: "two"},
		{words: `logs -n 1 {name}`, err: "two"},
		{words: `$ {berth} logs --since 1h -t {name} 2>/dev/null`, out: `\d{4}-\S+ one`},
		{words: `stats --no-stream --json {name}`, out: `\[\{"id":"[0-9a-f]{12}","name":"{name}","cpu_percent":.*`},
		{words: `inspect {name}`, out: `.*"status": "running".*`},
		{words: `rm {name}`, code: 1, err: `berth: task {name}: it still runs \(running\); berth stop ends it, or --force kills it`},
		{words: `$ {berth} rm $(echo {name} | cut -c 1-3)x`, code: 1, err: `berth: task "a-tx": there is no such task; berth ps -a lists all`},
		{words: `stop {name}`, out: "{name}"},
		{words: `ps -a --filter name={name}`, out: `ID .*exited \(5\) \d+s ago +- +{name}`},
		{words: `wait {name}`, out: "5"},
		{words: `exec {name} true`, code: 125, err: `berth: task {name}: it isn't running: exited \(5\)`},
		{words: `kill {name}`, code: 1, err: `berth: task {name}: it isn't running: exited \(5\)`},
		{words: `logs -f {name}`, out: "one", err: "two"},
		{words: `stop {name}`, out: "{name}"},
		{words: `rm {name}`, out: "{name}"},
		{words: `rm {name}`, code: 1, err: `berth: task "{name}": there is no such task; berth ps -a lists all`},
		{words: `rm -f {name}`},
	}},
	{"ends", []step{
		{words: `run -d --name {name} {image} sleep 100`, out: id},
		{words: `$ {berth} exec {name} true && {berth} kill {name}`, out: "{name}"},
		{words: `wait {name}`, out: "137"},
		{words: `rm {name}`, out: "{name}"},
		{words: `run --rm=false --name {name} {image} sh -c 'exit 9'`, code: 9},
		{words: `ps -a --filter exited=9 --filter name={name} -q`, out: id},
		{words: `rm {name}`, out: "{name}"},
		{words: `run -d --rm --name {name} {image} sleep 1`, out: id},
		{words: `wait {name}`, out: "0"},
		{words: `$ sleep 1; {berth} ps -aq`},
		{words: `run --timeout 1 {image} sleep 100`, code: 143, err: `berth: its time of 1s was over \(--timeout\)`},
		{words: `run -d --timeout 1 --name {name} {image} sleep 100`, out: id},
		{words: `wait {name}`, out: "143"},
		{words: `rm {name}`, out: "{name}"},
		{words: `$ timeout --preserve-status -s INT 2 {berth} run {image} sleep 100`, code: 130},
		{words: `$ timeout --preserve-status -s TERM 2 {berth} run {image} sh -c 'trap "echo got; exit 7" TERM; while :; do sleep 0.1; done'`, code: 7, out: "got"},
		{words: `run -d --stop-signal USR1 --name {name} {image} sh -c 'trap "exit 8" USR1; while :; do sleep 0.1; done'`, out: id},
		{words: `$ {berth} exec {name} true; sleep 0.5; {berth} stop {name}; {berth} wait {name}`, out: "{name}\n8"},
		{words: `rm {name}`, out: "{name}"},
		// SIGWINCH is the stop signal of httpd's image, and also says that a terminal has another size.
		{words: `run -d --stop-signal WINCH --name {name} {image} sh -c 'trap "exit 6" WINCH; while :; do sleep 0.1; done'`, out: id},
		{words: `$ {berth} exec {name} true; sleep 0.5; {berth} stop -t -1 {name}; {berth} wait {name}`, out: "{name}\n6"},
		{words: `rm {name}`, out: "{name}"},
		{words: `$ {berth} run --stop-signal WINCH --name {name} {image} sh -c 'trap "exit 6" WINCH; while :; do sleep 0.1; done' & until {berth} exec {name} true 2>/dev/null; do sleep 0.1; done; sleep 0.5; {berth} stop -t -1 {name}; wait $!`, code: 6, out: "{name}"},
	}},
	{"killed clients", []step{
		{words: `$ {berth} run --name {name} {image} sleep 100 & sleep 1.5; kill -9 $!; wait $! 2>/dev/null; {berth} ps --filter name={name}`, out: `ID .* up \d+s .*`, err: ".*"},
		{words: `rm -f {name}`, out: "{name}"},
		{words: `run --name {name} {image} true`},
	}},
	{"restart", []step{
		{words: `run -d --restart on-failure:1 --name {name} {image} sh -c 'echo once; exit 2'`, out: id},
		{words: `wait {name}`, out: "2"},
		{words: `logs {name}`, out: "once\nonce"},
	}},
	{"what differs", []step{
		{words: `run -d -i --name {name} {image} cat`, out: id, on: map[string]differs{"containerd": {
			why: "its shims give a logged task no input but a terminal's", code: 125, err: "berth: --detach --interactive: .*",
		}}},
		{words: `rm -f {name}`, out: "{name}", on: map[string]differs{"containerd": {why: "there is none"}}},
		{words: `run -d --restart always --name {name} {dir} sh -c :`, out: id, on: map[string]differs{"containerd": {
			why: "it starts again what it has the root of", code: 125, err: "berth: --restart: .* is a directory",
		}}},
		{words: `rm -f {name}`, out: "{name}", on: map[string]differs{"containerd": {why: "there is none"}}},
		{words: `run --runtime runc {image} true`, on: map[string]differs{"containerd": {
			why: "the runtime is berth-runtime, which has its own configuration", code: 125, err: "berth: --runtime runc: .*",
		}}},
	}},
	{"attach", []step{
		{words: `run -d --name {name} {image} sh -c 'sleep 1; echo late; exit 4'`, out: id},
		{words: `attach {name}`, code: 4, out: "late"},
		{words: `rm {name}`, out: "{name}"},
		{words: `run -dit --name {name} {image} sh`, out: id},
		{words: `$ (sleep 1; echo 'echo n$((1+1)); exit 6'; sleep 1) | {berth} attach {name}`, code: 6, out: `.*n2.*`},
		{words: `rm {name}`, out: "{name}"},
	}},
	{"images of files", []step{
		{words: `run oci-archive:{work}/layout.tar echo hi`, out: "hi"},
		{words: `run docker-archive:{work}/layout.docker.tar echo hi`, out: "hi"},
		{words: `run {work}/layout.docker.tar echo hi`, out: "hi"},
		{words: `run {layout} echo hi`, out: "hi"},
		{words: `run {dir} sh -c 'echo hi; touch /new'`, out: "hi"},
		{words: `$ ls {dir}`, out: "bin"},
		{words: `run --rw {dir} touch /new`},
		{words: `$ ls {dir} | grep new`, out: "new"},
		{words: `images`, out: "there are no images; berth pull gets them"},
	}},
	{"images of registries", []step{
		{words: `run --pull never {registry}/one true`, code: 125, err: `berth: image {registry}/one:latest is not here, and pulling wasn't wanted; .*`},
		{words: `pull {registry}/one`, out: `{registry}/one:latest`, err: ".*"},
		{words: `pull -q {registry}/one`, out: `{registry}/one:latest`},
		{words: `run {registry}/two echo hi`, out: "hi"},
		{words: `images`, out: `NAME +ID +CREATED +SIZE\n{registry}/one:latest +[0-9a-f]{12} .*\n{registry}/two:latest +[0-9a-f]{12} .*`},
		{words: `$ {berth} images -q | wc -l`, out: "1"},
		{words: `run -d --name {name} {registry}/one sleep 100`, out: id},
		{words: `$ {berth} rmi $({berth} images -q)`, code: 1, err: `berth: image "[0-9a-f]{12}" has several names: {registry}/one:latest, {registry}/two:latest; give one of them, or remove all with --force`},
		{words: `images -q --filter reference={registry}/o* --filter label=of=image`, out: `[0-9a-f]{12}`},
		{words: `images -q --filter label=of=nothing`},
		{words: `ps -q --filter label=of=image --filter name={name}`, out: id},
		{words: `ps -q --filter label=of=image --filter label=nosuch`},
		{words: `prune --all --filter label!=of`, err: "freed 0 B, 0 layers"},
		{words: `rmi {registry}/two`, out: `Untagged: {registry}/two:latest`},
		{words: `rmi {registry}/one nosuch`, code: 1, err: `berth: image "nosuch" is not here; .*\nberth: image {registry}/one:latest is used by a task; berth ps -a shows the tasks, and --force removes the name alone`},
		{words: `rm -f {name}`, out: "{name}"},
		{words: `rmi nosuch`, code: 1, err: `berth: .*nosuch.*`},
		{words: `rmi -f nosuch`, err: `berth: .*nosuch.*`},
		{words: `pull -q {registry}/two`, out: `{registry}/two:latest`},
		{words: `rmi {registry}/two`, out: `Untagged: {registry}/two:latest`},
		{words: `prune --all`, out: `{registry}/one:latest`, err: `freed .*`},
		{words: `images`, out: "there are no images; berth pull gets them"},
	}},
}

// daemonless are commands without a running containerd.
func TestConformanceWithout(t *testing.T) {
	skipUnlessWanted(t)
	h := newConformance(t, "forky", "v2")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.Path("/run/dead.sock"), Net: "unix"})
	rig.Must(t, err)
	l.SetUnlinkOnClose(false)
	rig.Must(t, l.Close())
	for _, c := range []struct{ name, line, err string }{
		{"no socket", `--containerd-address /run/nosuch.sock ps`, "berth: no containerd: there is no socket /run/nosuch.sock"},
		{"run without a socket", `--containerd-address /run/nosuch.sock run /x true`, "berth: no containerd: there is no socket /run/nosuch.sock"},
		{"nothing listens", `--containerd-address /run/dead.sock images`, "berth: no containerd: nothing listens at /run/dead.sock"},
		{"another engine", `--engine nosuch ps`, `berth: --engine "nosuch" is not known: there are native and containerd`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := h.run(t, "sh", "-c", shared.Berth+" --engine containerd "+c.line)
			if got.code == 0 || !matchesPattern(regexp.QuoteMeta(c.err)+".*", got.err) {
				t.Errorf("exit code %d: %s%s", got.code, got.out, got.err)
			}
		})
	}
	without := filepath.Join(h.dir, "alone")
	rig.Must(t, os.MkdirAll(without, 0o755))
	h.do(t, "cp", shared.Berth, without)
	got := h.run(t, filepath.Join(without, "berth"), "--engine", "containerd", "ps")
	if want := fmt.Sprintf("berth: --engine containerd: there is no berth-containerd in %s or /usr/lib/berth: install berth again, or leave out --engine\n", without); got.code != 1 || got.err != want {
		t.Errorf("exit code %d: %s", got.code, got.err)
	}
}
