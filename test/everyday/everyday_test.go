package everyday

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

var update = flag.Bool("update", false, "write docs/reference/everyday.md, or habits.md")

// use is one everyday use of docker.
type use struct {
	name   string
	script string
	// differs is the reason for an intended difference.
	differs string
}

// did is the result of a script.
type did struct {
	Out, Err string
	Code     int
	// Left is the number of tasks after it.
	Left string
	// words are the messages of docker or berth, unchanged.
	words string
}

// programs are the programs that take the place of docker in a script.
var programs = []string{"docker", "berth"}

// prelude is before each script. soon waits for a command to succeed.
const prelude = `soon() { n=0; until "$@" >/dev/null 2>&1; do n=$((n + 1)); [ $n -lt 200 ] || return 1; sleep 0.1; done; }
box=` + registry + `/box full=` + registry + `/box:full
`

// TestUses compares berth with docker, and the differences with the intended ones.
func TestUses(t *testing.T) {
	skipUnlessWanted(t)
	h := newHost(t)
	all := slices.Concat(runUses, fileUses, limitUses, lifeUses, deviceUses)
	found := make([]difference, 0, len(all))
	names := map[string]bool{}
	for _, u := range all {
		if names[u.name] {
			t.Fatalf("two uses are called %q", u.name)
		}
		names[u.name] = true
		t.Run(u.name, func(t *testing.T) {
			docker, berth := h.both(t, u)
			diff := cmp.Diff(docker, berth, cmpopts.IgnoreUnexported(did{}))
			switch {
			case diff != "" && u.differs == "":
				t.Errorf("%s\n(-docker +berth):\n%s\ndocker says: %s\nberth says: %s", u.script, diff, docker.words, berth.words)
			case diff == "" && u.differs != "":
				t.Errorf("%s\nit is listed as different, and both do %+v; berth says: %s", u.script, docker, berth.words)
			case diff != "":
				found = append(found, difference{u, docker, berth})
			}
		})
	}
	if !t.Failed() {
		compare(t, "../../docs/reference/everyday.md", page(all, found))
	}
}

func compare(t *testing.T, name, text string) {
	t.Helper()
	if *update {
		rig.Must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	have, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), text); diff != "" {
		t.Errorf("%s isn't what there is; go test ./test/everyday -run %s -update writes it (-have +want):\n%s", name, t.Name(), diff)
	}
}

// host is a server with docker, berth, and a registry.
type host struct {
	*rack.Host
	t *testing.T
}

func newHost(t *testing.T) host {
	t.Helper()
	tree, err := rack.Tree("forky")
	rig.Must(t, err)
	simnode := filepath.Join(shared.Dir, "simnode")
	rig.Must(t, rack.Simnode(simnode))
	started, err := rack.Start(rack.Options{Tree: tree, Cgroup: "v1", Simnode: simnode, Share: shared.Dir, Key: "everyday"})
	rig.Must(t, err)
	h := host{started, t}
	t.Cleanup(func() { rig.Must(t, h.Stop()) })
	h.config()
	self := filepath.Join(shared.Dir, "registry")
	here, err := os.Executable()
	rig.Must(t, err)
	rig.Must(t, exec.Command("cp", here, self).Run())
	h.daemon("containerd")
	h.until("ctr", "version")
	h.daemon(rack.Dockerd()...)
	h.daemon("env", serves+"="+shared.Dir+"/images", self)
	for _, p := range programs {
		h.until("sh", "-c", h.prelude(p)+"docker pull $box && docker pull $full")
	}
	return h
}

// config installs berth as an admin would, and once more under docker's name.
func (h host) config() {
	h.t.Helper()
	dir := filepath.Join(shared.Dir, "as-berth")
	rig.Must(h.t, os.MkdirAll(dir, 0o755))
	rig.Must(h.t, os.WriteFile(dir+"/docker", []byte("#!/bin/sh\nexec "+shared.Berth+` "$@"`+"\n"), 0o755))
	h.until("sh", "-c", `mkdir -p /etc/berth && echo "$0" >/etc/berth/config.toml`, fmt.Sprintf("runtime = 'runc'\nberth = %q", shared.Berth))
	h.until(shared.Berth, "discover", "--quiet")
	h.until(shared.Berth, "cdi", "generate")
}

func (h host) prelude(program string) string {
	if program == "docker" {
		return prelude
	}
	return "PATH=" + shared.Dir + "/as-berth:$PATH\n" + prelude
}

// daemon starts a daemon that runs until the host ends.
func (h host) daemon(words ...string) {
	h.t.Helper()
	log, err := os.Create(filepath.Join(shared.Dir, filepath.Base(words[0])+".log"))
	rig.Must(h.t, err)
	defer log.Close()
	cmd := h.Command(words...)
	cmd.Stdout, cmd.Stderr = log, log
	rig.Must(h.t, cmd.Start())
	go func() { _ = cmd.Wait() }() // it is killed in the end
}

// until waits for a command to succeed.
func (h host) until(words ...string) {
	h.t.Helper()
	var out []byte
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if out, err = h.Command(words...).CombinedOutput(); err == nil {
			return
		}
	}
	h.t.Fatalf("%v: %v: %s", words, err, out)
}

// both runs a use with docker and with berth, at the same time.
func (h host) both(t *testing.T, u use) (docker, berth did) {
	t.Helper()
	all, errs := make([]did, len(programs)), make([]error, len(programs))
	var each sync.WaitGroup
	for i, p := range programs {
		each.Go(func() { all[i], errs[i] = h.do(u, p) })
	}
	each.Wait()
	rig.Must(t, errors.Join(errs...))
	return all[0], all[1]
}

// do runs a script to its end, in an empty directory, and removes what it leaves.
func (h host) do(u use, program string) (did, error) {
	dir, err := os.MkdirTemp(shared.Dir, "use-")
	if err != nil {
		return did{}, err
	}
	defer os.RemoveAll(dir)
	var d did
	out, err := os.Create(filepath.Join(dir, "1"))
	if err != nil {
		return d, err
	}
	defer out.Close()
	said, err := os.Create(filepath.Join(dir, "2"))
	if err != nil {
		return d, err
	}
	defer said.Close()
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return d, err
	}
	cmd := h.Command("env", "-C", work, "timeout", "--kill-after=5", "60", "sh", "-c", h.prelude(program)+u.script)
	cmd.Stdout, cmd.Stderr = out, said
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return d, err
	}
	d.Code = cmd.ProcessState.ExitCode()
	left, err := h.Command("sh", "-c", h.prelude(program)+
		`docker ps -aq | wc -l; soon sh -c 'all=$(docker ps -aq); [ -z "$all" ] || docker rm -f $all; [ -z "$(docker ps -aq)" ]'`).CombinedOutput()
	if err != nil {
		return d, fmt.Errorf("%s: remove what is left: %w: %s", u.name, err, left)
	}
	d.Left = strings.TrimSpace(string(left))
	clean := strings.NewReplacer(dir, "DIR")
	for f, text := range map[*os.File]*string{out: &d.Out, said: &d.Err} {
		data, err := os.ReadFile(f.Name())
		if err != nil {
			return d, err
		}
		*text = normalize(clean.Replace(string(data)))
	}
	d.words, d.Err = d.Err, own(d.Err)
	return d, nil
}

var (
	id    = regexp.MustCompile(`\b([0-9a-f]{64}|[0-9a-f]{12})\b`)
	stamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d)`)
	// complaint is the beginning of messages of docker and berth.
	complaint = regexp.MustCompile(`^(berth: |docker: |Error|unknown |Unable to find|Run 'docker|See 'docker|See "docker|the input device|time=|conflicting options|invalid |"docker |You cannot )`)
)

// normalize removes the values of one run from a text.
func normalize(text string) string {
	return stamp.ReplaceAllString(id.ReplaceAllString(text, "ID"), "TIME")
}

// says stands for a message of the program: each program has its own wording.
const says = "(it says why)\n"

func own(text string) string {
	var b strings.Builder
	said := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "WARNING: "): // docker's warnings about this server
		case complaint.MatchString(line):
			said = true
		case said && (strings.TrimSpace(line) == "" || strings.HasPrefix(line, "Usage:") || strings.HasPrefix(line, "\t")):
		default:
			b.WriteString(line)
		}
	}
	if said {
		b.WriteString(says)
	}
	return b.String()
}

func words(text string) []string { return strings.Fields(text) }
