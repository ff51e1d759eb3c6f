package hook

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// Seen from inside, a container with devices from the hook is the one that the wrapper makes,
// except for the table in docs/runtime.md.
func TestSameAsTheWrapper(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.configure(t, "")
		made := w.plain(t)
		made.Annotations = map[string]string{"berth.gpus": "device=0,3"}
		wrapped := run(t, w, w.Runtime, config, made)
		want := wrapped.describeContainer(made)
		wrapped.delete()
		for name, stages := range map[string][]string{
			"createRuntime": {"createRuntime"}, "prestart": {"prestart"}, "both": {"prestart", "createRuntime"},
		} {
			t.Run(name, func(t *testing.T) {
				spec := withHooks(w.plain(t), entry(config, "createRuntime", "--request", "device=0,3"), stages...)
				c := run(t, w, w.runtime, config, spec)
				if l := c.lease(); len(l.Devices) != 2 || l.Owner.Bundle != c.bundle {
					t.Errorf("its lease is %+v", l)
				}
				compare(t, want, c.describeContainer(spec))
				c.delete()
				c.checkNothingLeft()
			})
		}
	})
}

// describeContainer returns everything that is visible in a container, by name.
func (c *container) describeContainer(spec *specs.Spec) map[string]string {
	c.t.Helper()
	seen := map[string]string{}
	for _, d := range c.w.accelerators(c.t) {
		seen["open "+d.path] = c.ask("open " + d.path)[0]
		seen[fmt.Sprintf("open the image's %d:%d", d.major, d.minor)] = c.ask(fmt.Sprintf("open /nodes/%d:%d", d.major, d.minor))[0]
	}
	for _, path := range []string{"/dev/null", "/dev/zero", "/dev/urandom", "/dev/tty", "/dev/ptmx"} {
		seen["open "+path] = c.ask("open " + path)[0]
	}
	for _, line := range c.ask("tree /dev") {
		path, rest, _ := strings.Cut(line, " ")
		seen["file "+path] = rest
	}
	for _, line := range c.ask("cat /proc/self/mountinfo") {
		where, how := mount(line)
		seen["mount "+where] += how + ";"
	}
	for _, line := range c.ask("cat /proc/self/environ") {
		name, value, _ := strings.Cut(line, "=")
		seen["variable "+name] += value
	}
	for _, line := range c.ask("cat /proc/self/status") {
		key, value, _ := strings.Cut(line, ":")
		if strings.HasPrefix(key, "Cap") || slices.Contains([]string{"Groups", "NoNewPrivs", "Seccomp", "Uid", "Gid"}, key) {
			seen["status "+key] = strings.TrimSpace(value)
		}
	}
	for _, line := range c.ask("cat /proc/self/limits") {
		seen["limit "+strings.TrimSpace(line[:26])] = line[26:]
	}
	maps.Copy(seen, filesOf(c.t, spec.Root.Path))
	return seen
}

var shared1 = regexp.MustCompile(`(shared|master):\d+`)

// mount returns mount point, source and flags of a line of mountinfo, without the node's numbers.
func mount(line string) (where, how string) {
	f := strings.Fields(line)
	rest := strings.Join(f[6:], " ")
	before, kind, _ := strings.Cut(rest, "- ")
	if strings.HasPrefix(kind, "overlay") || strings.HasSuffix(f[3], "/rootfs") {
		f[3] = "ROOT"
	}
	return f[4], strings.Join([]string{f[3], f[5], shared1.ReplaceAllString(before, "$1"), strings.Fields(kind)[0]}, " ")
}

// filesOf returns what berth has changed in a root.
func filesOf(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	rig.Must(t, filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		if err != nil || !strings.HasPrefix(name, "/etc") && !strings.HasPrefix(name, "/usr") {
			return err
		}
		// The runtime chooses the modes of mount points.
		all["in the root "+name] = e.Type().String()
		if !e.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		all["in the root "+name] = fmt.Sprintf("%d bytes: %x", len(data), sha256.Sum256(data))
		return err
	}))
	return all
}

const doc = "../../docs/runtime.md"

// compare compares a container with the wrapper's. Every difference must be in the table, and each
// line of the table must be a difference.
func compare(t *testing.T, want, got map[string]string) {
	t.Helper()
	different := map[string]bool{}
	keys := map[string]bool{}
	for _, m := range []map[string]string{want, got} {
		for k := range m {
			keys[k] = true
		}
	}
	allowed := readTable(t)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if want[k] == got[k] {
			continue
		}
		different[k] = true
		if !allowed[k] {
			t.Errorf("%s: with the hook %q, with the wrapper %q", k, got[k], want[k])
		}
	}
	for k := range allowed {
		if !different[k] {
			t.Errorf("%s: the table says that it is different, and it is not", k)
		}
	}
}

var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// readTable reads the first column of the table in the docs.
func readTable(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(doc)
	rig.Must(t, err)
	_, rows, _ := strings.Cut(string(text), "| what is different |")
	rows, _, _ = strings.Cut(rows, "\n\n")
	all := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(rows, -1) {
		all[m[1]] = true
	}
	if len(all) == 0 {
		t.Fatalf("%s has no table", doc)
	}
	return all
}
