package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandLine: errors in the command line alone.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	for _, c := range []struct {
		name, args string
		code       int
		line       string
	}{
		{"unknown verb", "rn", 2, `there is no verb "rn" (did you mean run?); berth --help lists the verbs`},
		{"unknown verb, nothing near", "frobnicate", 2, `there is no verb "frobnicate"; berth --help lists the verbs`},
		{"help for an unknown verb", "help rn", 2, `there is no verb "rn" (did you mean run?); berth --help lists the verbs`},
		{"unknown flag", "--confg x gpus", 2, `there is no flag --confg (did you mean --config?); berth --help shows the usage`},
		{"unknown flag of gpus", "gpus --jsn", 2, `there is no flag --jsn (did you mean --json?); berth gpus --help shows the usage`},
		{"unknown flag of run", "run --gpu 1 IMAGE", 125, `there is no flag --gpu (did you mean --gpus?); berth run --help shows the usage`},
		{"unknown flag of alloc", "alloc --frobnicate 1 true", 125, `there is no flag --frobnicate; berth alloc --help shows the usage`},
		{"run's flag of alloc", "alloc --gpus 1 true", 125, `there is no flag --gpus: the request is the first word, as in berth alloc 2 -- python train.py; berth alloc --help shows the usage`},
		{"a restart of what isn't detached", "run --restart always IMAGE true", 125, `restart policy always: only a detached task (-d) is started again`},
		{"little memory", "run --memory 1 IMAGE", 125, `memory of 1 bytes is too little to start in: at least 6m are needed`},
		{"flag without its value", "run --gpus", 125, `flag needs an argument: --gpus; berth run --help shows the usage`},
		{"no image", "run --gpus 1", 125, `run takes an image: berth run --gpus 1 IMAGE COMMAND; berth run --help shows the usage`},
		{"no image, a model", "run --gpus h100:2", 125, `run takes an image: berth run --gpus 1 IMAGE COMMAND; berth run --help shows the usage`},
		{"no count before the image", "run --gpus ubuntu:24.04", 125, `run takes an image: berth run --gpus 1 IMAGE COMMAND; if ubuntu:24.04 is the image, the count is missing: --gpus 1 ubuntu:24.04; berth run --help shows the usage`},
		{"no count before an image without tag", "run --gpus ubuntu", 125, `run takes an image: berth run --gpus 1 IMAGE COMMAND; if ubuntu is the image, the count is missing: --gpus 1 ubuntu; berth run --help shows the usage`},
		{"no count before image and command", "run --gpus ubuntu:24.04 ls", 125, `--gpus: request "ubuntu:24.04": "24.04" isn't a count, as in h100:2; if ubuntu:24.04 is the image, the count is missing: --gpus 1 ubuntu:24.04`},
		{"no count before image without tag and command", "run --gpus ubuntu IMAGE", 125, `request ubuntu: node has no ubuntu; it has h100; if ubuntu is the image, the count is missing: --gpus 1 ubuntu; berth gpus lists the node's devices`},
		{"no count before a directory", "run --gpus ./root ls", 125, `--gpus: request "./root": "./root" isn't the name of a CDI device, as vendor.example/class=name is; if ./root is the image, the count is missing: --gpus 1 ./root`},
		{"no count after the model", "run --gpus h100: IMAGE", 125, `--gpus: request "h100:": the count after ":" is missing, as in h100:2`},
		{"count before the model", "run --gpus 2:h100 IMAGE", 125, `--gpus: request "2:h100": the model comes before the count, as in h100:2`},
		{"number that isn't attached", "run --wait 10 IMAGE", 125, `the duration of --wait is attached with =: --wait=10s; berth run --help shows the usage`},
		{"duration without unit", "run --wait=10 IMAGE", 125, `invalid value "10" for --wait: give a duration such as 30s, 10m or 2h, or --wait alone; berth run --help shows the usage`},
		{"no command", "alloc 1", 125, `alloc takes a request and a command: berth alloc 2 -- python train.py; berth alloc --help shows the usage`},
		{"no lease", "release", 2, `release takes one lease, by its id or its holder's name; berth leases shows them; berth release --help shows the usage`},
		{"too many leases", "release a b", 2, `release takes one lease, by its id or its holder's name; berth leases shows them; berth release --help shows the usage`},
		{"argument of gpus", "gpus x", 2, `gpus takes no argument, got "x"; berth gpus --help shows the usage`},
		{"argument of leases", "leases x", 2, `leases takes no argument, got "x"; berth leases --help shows the usage`},
		{"argument of repair", "repair x", 2, `repair takes no argument, got "x"; berth repair --help shows the usage`},
		{"argument of discover", "discover x", 2, `discover takes no argument, got "x"; berth discover --help shows the usage`},
		{"invalid duration", "run --wait=soon --gpus 1 IMAGE", 125, `invalid value "soon" for --wait: give a duration such as 30s, 10m or 2h, or --wait alone; berth run --help shows the usage`},
		{"negative duration", "alloc --wait=-1s 1 true", 125, `invalid value "-1s" for --wait: give a duration such as 30s, 10m or 2h, or --wait alone; berth alloc --help shows the usage`},
		{"duration that isn't attached", "run --wait 10m IMAGE", 125, `the duration of --wait is attached with =: --wait=10m; berth run --help shows the usage`},
		{"duration that isn't attached, alloc", "alloc --wait 10m 1 true", 125, `the duration of --wait is attached with =: --wait=10m; berth alloc --help shows the usage`},
		{"invalid memory", "run --memory 1x IMAGE", 125, `--memory "1x" is not a size, such as 512m or 64g`},
		{"invalid shm", "run --shm-size -5 IMAGE", 125, `--shm-size "-5" is not a size, such as 512m or 64g`},
		{"invalid cpus", "run --cpus many IMAGE", 125, `--cpus "many" is not a number of CPUs, such as 2 or 1.5`},
		{"invalid volume", "run -v data IMAGE", 125, `volume "data" is not SRC:DST[:OPTIONS]`},
		{"volume of nothing", "run -v /no/such:/data IMAGE", 125, `volume "/no/such:/data": stat /no/such: no such file or directory; for an empty directory: mkdir -p /no/such`},
		{"unknown network", "run --network bridge IMAGE", 125, `network "bridge" is not known: there are host, where what a task listens on is reached at the host's address, and none`},
		{"invalid name", "run --name a/b IMAGE", 125, `name "a/b": only letters, digits, "_", "." and "-" are allowed, at most 63, beginning with a letter or digit`},
		{"read-only and writable", "run --read-only --rw IMAGE", 125, `a root file system can't be both read-only and writable`},
		{"no terminal", "run -it IMAGE", 125, `standard input is no terminal: leave out -t (--tty) to pass it on as it is, or -i (--interactive)`},
		{"unknown lease", "release abc", 1, `release "abc": no such lease; berth leases lists all leases`},
		{"empty lease", "release ''", 1, `release "": no such lease; berth leases lists all leases`},
	} {
		t.Run(c.name, func(t *testing.T) {
			words := strings.Fields(strings.ReplaceAll(strings.ReplaceAll(c.args, "IMAGE", image()), "''", `""`))
			for i := range words {
				words[i] = strings.Trim(words[i], `"`)
			}
			n.as(t).berth(words...).fails(c.code, "berth: "+c.line)
		})
	}
	n.checkClean(t)
}

// as reports to another test.
func (n *node) as(t *testing.T) *node {
	m := *n
	m.t = t
	return &m
}

// TestRequests: requests for devices that the node doesn't have, or that are leased now.
func TestRequests(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	const kinds = `known are a count (2), all, a model (h100:2), a MIG profile (1g.10gb:2), ids (device=0,3, GPU-…, MIG-…, 0000:1b:00.0), conditions (2,mem>=40G) and NICs (2,nics=auto)`
	const hint = "; berth gpus lists the node's devices"
	held := n.start("berth", "alloc", "0,3", "--", "sleep", "1000")
	n.waitForLeases(1)
	const busy = "; held: GPU 0,3 by alloc sleep since TIME; wait for them with --wait, or see berth leases"
	for _, c := range []struct {
		name, request string
		code          int
		line          string
	}{
		{"more than the node has", "9", 125, "request 9: node has 8 GPUs, 9 asked" + hint},
		{"more than is free", "7", 75, "request 7: 7 asked, 6 of 8 free" + busy},
		{"all", "all", 75, "request all: 8 asked, 6 of 8 free" + busy},
		{"more of the model than the node has", "h100:9", 125, "request h100:9: node has 8 H100, 9 asked" + hint},
		{"more of the model than is free", "h100:7", 75, "request h100:7: 7 asked, 6 of 8 free" + busy},
		{"busy by index", "device=3", 75, "request device=3: 1 asked, 0 of 1 free" + busy},
		{"busy by PCI address", "0000:1b:00.0", 75, "request device=0000:1b:00.0: 1 asked, 0 of 1 free" + busy},
		{"busy by UUID", "GPU-c41fcb1b-a940-4466-abc6-42f83ec7c7d1", 75, "request device=GPU-c41fcb1b-a940-4466-abc6-42f83ec7c7d1: 1 asked, 0 of 1 free" + busy},
		{"busy by shortened UUID", "GPU-c41f", 75, "request device=GPU-c41f: 1 asked, 0 of 1 free" + busy},
		{"one of two busy", "2,3", 75, "request device=2,3: 2 asked, 1 of 2 free" + busy},
		{"unknown index", "device=12", 125, "request device=12: node has no device 12; it has 0, 1, 2, 3, 4, 5, 6, 7" + hint},
		{"unknown model", "a100", 125, "request a100: node has no a100 (did you mean h100?); it has h100" + hint},
		{"unknown profile", "1g.5gb", 125, "request 1g.5gb: node has no 1g.5gb; it has h100" + hint},
		{"too much memory", "2,mem>=90G", 125, "request 2,mem>=90G: node has 0 GPUs with mem>=90G, 2 asked" + hint},
		{"empty", "", 125, `--gpus: request "": asks for no GPU`},
		{"named twice", "1,1", 125, `--gpus: request "1,1": 1 is named twice`},
		{"invalid condition", "2,mem>=4x0G", 125, `--gpus: request "2,mem>=4x0G": "4x0g" needs a unit: K, M, G, T, Ki, Mi, Gi or Ti`},
		{"invalid words", "1 2", 125, `--gpus: request "1 2": ` + kinds},
		{"what a terminal obeys", "\x1b[31m1", 125, `--gpus: request "\x1b[31m1": has a character that requests can't have`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.as(t).berth("run", "--gpus", c.request, image(), "true").fails(c.code, "berth: "+c.line)
			if c.code == 75 || strings.HasSuffix(c.line, hint) {
				n.as(t).berth("alloc", c.request, "--", "true").fails(c.code, "berth: "+c.line)
			}
		})
	}
	n.berth("alloc", "0", "--", "true").fails(125, `berth: request "0": asks for no GPU; the GPU with index 0 is "device=0"`)
	check(t, held.Process.Signal(os.Interrupt))
	held.wait().is(130, "", "")
	n.checkClean(t)
}

// TestImages: invalid images, and commands that an image doesn't have.
func TestImages(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	dir := t.TempDir()
	const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	const makes = "; berth pull NAME pulls an image, and berth images lists pulled images"
	file := filepath.Join(dir, "file")
	check(t, os.WriteFile(file, []byte("text"), 0o644))
	broken := filepath.Join(dir, "broken")
	check(t, os.Mkdir(broken, 0o755))
	check(t, os.WriteFile(filepath.Join(broken, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
	empty := filepath.Join(dir, "empty")
	check(t, os.Mkdir(empty, 0o755))
	for _, c := range []struct {
		name string
		args []string
		code int
		line string
	}{
		{"nothing there", []string{"./ubuntu"}, 125, "./ubuntu is no image: there is no such file" + makes},
		{"a file", []string{file}, 125, file + " is no image: neither a directory nor an archive of one: read archive: unexpected EOF" + makes},
		{"an empty directory", []string{empty}, 125, empty + " is no image: neither an OCI layout nor a root file system" + makes},
		{"no layout", []string{"oci:" + empty}, 125, "oci:" + empty + " is no image: there is no OCI layout at " + empty + makes},
		{"a layout without index", []string{broken}, 125, "open image " + broken + ": open index.json in " + broken + ": no such file or directory"},
		{"an unknown tag", []string{image() + ":v9"}, 125, `open image IMAGE:v9: no image is tagged "v9"; there are: latest`},
		{"writing to a layout", []string{"--rw", image(), "true"}, 125, "image IMAGE has layers, which are shared and never change: writing to the image needs a directory image"},
		{"no such program", []string{image(), "frobnicate"}, 127, `command not found: "frobnicate" is nowhere in PATH (` + path + ")"},
		{"no such file", []string{image(), "/frobnicate"}, 127, "command not found: there is no /frobnicate in the image"},
		{"no program", []string{image(), "/etc/passwd"}, 126, "command can't be executed: /etc/passwd has no execute permission"},
		{"a directory", []string{image(), "/etc"}, 126, "command can't be executed: /etc is a directory"},
		{"an unknown user", []string{"-u", "nobodyx", image(), "true"}, 125, `user "nobodyx": not in the image's /etc/passwd`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.as(t).berth(append([]string{"run", "--gpus", "1"}, c.args...)...).fails(c.code, "berth: "+c.line)
		})
	}
	n.checkClean(t)
}

// Where a file can't be read, no error claims that it exists or not.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.sh("mkdir -p /var/lib/berth/images && cd /var/lib/berth && rm -rf images/names tasks && touch images/names tasks").ok()
	if r := n.berth("images"); r.code != 1 || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("images: code %d, output %q, %q", r.code, r.stdout, r.stderr)
	}
	if r := n.berth("ps"); r.code != 1 || r.stdout != "" {
		t.Errorf("ps: code %d, output %q", r.code, r.stdout)
	}
}

// TestFewFiles: if fewer files can be open than Go's runtime needs, berth says so in one line.
func TestFewFiles(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	for _, limit := range []string{"4", "6", "7", "9"} {
		n.sh("ulimit -n "+limit+"; exec berth gpus").fails(1, "berth: only "+limit+" files may be open at once: raise the limit (ulimit -n)")
	}
}
