package docs

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

const top = "../../"

var shared *rig.Rig

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		return rig.MakeImages()
	})
}

func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(top + "docs/*.md")
	rig.Must(t, err)
	reference, err := filepath.Glob(top + "docs/reference/*.md")
	rig.Must(t, err)
	names = append(names, reference...)
	all := map[string]string{}
	for _, name := range append(names, top+"README.md") {
		text, err := os.ReadFile(name)
		rig.Must(t, err)
		all[strings.TrimPrefix(name, top)] = string(text)
	}
	if len(all) < 3 {
		t.Fatalf("the pages are only %d", len(all))
	}
	return all
}

// TestBlocks checks each fenced block as its kind says.
func TestBlocks(t *testing.T) {
	kinds := map[string]func(*testing.T, block){
		"console": console, "sh make": targets, "sh usage": usage, "json": wellFormedJSON, "toml": wellFormedTOML,
		"text": func(*testing.T, block) {}, // a block of prose
		"text demo": func(t *testing.T, b block) {
			if b.page != "README.md" {
				t.Error("test/demo compares that of README.md alone")
			}
		},
		"console containerd": engines("docs/containerd.md"), "console containerd 2": engines("docs/containerd.md"),
		"console berth containerd": engines("docs/containerd.md"),
		"toml containerd 2":        engines("docs/containerd.md"), "toml containerd 3": engines("docs/containerd.md"),
		"yaml kubernetes": engines("docs/containerd.md"),
		"yaml compose":    engines("docs/docker.md"),
		"yaml podman":     engines("docs/podman.md"),
		"console setup":   engines("docs/setup.md"),
		"yaml batch":      batchFile,
		"sh install": func(t *testing.T, b block) {
			if b.page != "docs/install.md" {
				t.Error("test/packages runs that of docs/install.md alone")
			}
		},
	}
	seen := map[string]int{}
	for page, text := range pages(t) {
		blocks, err := fenced(page, text)
		rig.Must(t, err)
		for _, b := range blocks {
			t.Run(b.String(), func(t *testing.T) {
				check, known := kinds[b.kind]
				if !known {
					t.Fatalf("nothing checks blocks of the kind %q", b.kind)
				}
				seen[b.kind]++
				check(t, b)
			})
		}
	}
	if seen["console"] < 3 || seen["text demo"] != 1 {
		t.Errorf("found too few: %v", seen)
	}
}

// engines marks blocks that test/engines runs, of one page.
func engines(page string) func(*testing.T, block) {
	return func(t *testing.T, b block) {
		if b.page != page {
			t.Errorf("test/engines runs that of %s alone", page)
		}
	}
}

// Registries of the guide: one that has an image of busybox, and one that has Debian's.
const (
	example = "registry.example"
	hub     = "docker.io/library"
)

// place is where the guide's commands are run: a simulated server, and a directory with the files
// that the guide's reader has.
type place struct {
	*rig.Node
	dir string
	// registry and hub are the addresses that stand for registry.example and docker.io/library.
	registry, hub string
}

var newPlace = sync.OnceValues(func() (place, error) {
	n, err := shared.Start("dgx-h100", "v2")
	if err != nil {
		return place{}, err
	}
	return furnish(n, "reader")
})

// newPlaceApart is one with a network of its own, for gangs.
var newPlaceApart = sync.OnceValues(func() (place, error) {
	n, err := shared.StartApart("dgx-h100", "v2")
	if err != nil {
		return place{}, err
	}
	p, err := furnish(n, "apart")
	if err != nil {
		return p, err
	}
	// README.md shows the progress of no pull.
	if out, err := p.shell("berth pull " + p.hub + "/debian:bookworm").CombinedOutput(); err != nil {
		return p, fmt.Errorf("pull the image: %w: %s", err, out)
	}
	return p, nil
})

func furnish(n *rig.Node, dir string) (place, error) {
	p := place{Node: n, dir: filepath.Join(shared.Dir, dir)}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return p, err
	}
	image, err := filepath.Abs(top + ".cache/image/debian")
	if err != nil {
		return p, err
	}
	other := filepath.Join(filepath.Dir(image), "busybox")
	if p.registry, err = n.Serve(&fake.Registry{Dir: other}); err != nil {
		return p, err
	}
	if p.hub, err = n.Serve(&fake.Registry{Dir: image}); err != nil {
		return p, err
	}
	if err := os.Symlink(image, filepath.Join(p.dir, "image")); err != nil {
		return p, err
	}
	scripts := map[string]string{dir + "/train": "exit 0", "apptainer": `shift 2; exec "$@"`, "mpirun": `shift 2; exec "$@"`, "python": "exit 0"}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(shared.Dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			return p, err
		}
	}
	// The message of a slow unpacking isn't part of the guide.
	if out, err := p.shell("berth run ./image true").CombinedOutput(); err != nil {
		return p, fmt.Errorf("unpack the image: %w: %s", err, out)
	}
	return p, nil
}

// runLine runs a line of the guide.
func (p place) runLine(t *testing.T, line string) rig.Said {
	t.Helper()
	got := p.Run(t, p.shell(strings.NewReplacer(example, p.registry, hub, p.hub).Replace(line)))
	got.Out = strings.ReplaceAll(got.Out, p.registry, example)
	return got
}

// isStatusVerb reports whether a line lists leases, tasks or GPUs, or shows the log of a task: its output depends on the time.
func isStatusVerb(line string) bool {
	return line == "berth leases" || line == "berth ps" || line == "berth gpus" || strings.HasPrefix(line, "berth logs ")
}

// console runs the commands one after another, and finally ends their background processes.
func console(t *testing.T, b block) {
	make := newPlace
	if b.page == "docs/gangs.md" || b.page == "README.md" {
		make = newPlaceApart
	}
	p, err := make()
	rig.Must(t, err)
	if b.page == "docs/apptainer.md" {
		image := rig.MakeSIF(t, "busybox", map[string]string{"bin/python": "#!/bin/sh\n", ".singularity.d/runscript": "#!/bin/sh\n"})
		rig.Must(t, os.Symlink(image, filepath.Join(p.dir, "pytorch.sif")))
	}
	all, err := b.commands()
	rig.Must(t, err)
	for _, c := range all {
		if c.background {
			defer p.background(t, c)()
			continue
		}
		got := p.runLine(t, c.line)
		for tries := 0; tries < 50 && isStatusVerb(c.line) && c.prints != nil && !fits(c.prints, got.Out); tries++ {
			time.Sleep(200 * time.Millisecond) // a task that was started a moment ago may still be starting
			got = p.runLine(t, c.line)
		}
		if got.Code != c.code {
			t.Errorf("%s\nends with exit code %d, not %d: %s", c.line, got.Code, c.code, got.Out)
		}
		if c.prints != nil && !fits(c.prints, got.Out) {
			t.Errorf("%s\nprints\n%s\nand not\n%s", c.line, got.Out, strings.Join(c.prints, "\n"))
		}
	}
}

// batchFile runs a batch file.
func batchFile(t *testing.T, b block) {
	p, err := newPlace()
	rig.Must(t, err)
	rig.Must(t, os.WriteFile(filepath.Join(p.dir, "batch.yaml"), []byte(strings.Join(b.text, "\n")), 0o644))
	if got := p.runLine(t, "berth batch batch.yaml"); got.Code != 0 {
		t.Errorf("berth batch ends with %d: %s", got.Code, got.Out)
	}
}

// shell runs a line of the guide; both its outputs are one.
func (p place) shell(line string) *exec.Cmd {
	path := "PATH=" + shared.Dir + ":" + os.Getenv("PATH")
	return p.Command("env", "-C", p.dir, path, "sh", "-c", "exec 2>&1; "+line)
}

// background starts a command that runs while the next ones do, and waits until it has its lease.
// The returned function ends it.
func (p place) background(t *testing.T, c command) (end func()) {
	t.Helper()
	before := p.Leases(t)
	cmd := p.shell("exec " + c.line)
	var said strings.Builder
	cmd.Stdout = &said
	rig.Must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var id string
	for deadline := time.Now().Add(time.Minute); id == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill() // it may have ended
			t.Fatalf("%s: takes no lease: %v: %s", c.line, <-done, &said)
		}
		for _, l := range p.Leases(t) {
			if l.Status == "running" && !slices.ContainsFunc(before, func(b rig.Lease) bool { return b.ID == l.ID }) {
				id = l.ID
			}
		}
	}
	return func() {
		p.Do(t, p.Berth, "release", "--force", id)
		<-done // it was killed, which is an error
	}
}

// targets returns the Makefile's targets.
func targets(t *testing.T, b block) {
	makefile, err := os.ReadFile(top + "Makefile")
	rig.Must(t, err)
	for _, line := range b.text {
		words := strings.Fields(line)
		if len(words) != 2 || words[0] != "make" || !strings.Contains(string(makefile), "\n"+words[1]+":") {
			t.Errorf("%q is no target of the Makefile", line)
		}
	}
}

// usage checks calls of a program of cmd/, each with its description behind two spaces: verb and
// flags have to occur in the program's source.
func usage(t *testing.T, b block) {
	for _, line := range b.text {
		call, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		words := strings.Fields(call)
		if len(words) < 2 {
			t.Errorf("%q is no call", line)
			continue
		}
		source := sources(t, top+"cmd/"+words[0]) + sources(t, top+"hook")
		for i, w := range words[1:] {
			flag, is := strings.CutPrefix(w, "--")
			if (i == 0 || is) && !strings.Contains(source, `"`+flag+`"`) && !strings.Contains(source, `"--`+flag+`"`) {
				t.Errorf("%s knows no %s", words[0], w)
			}
		}
	}
}

// sources are the Go files below a directory, without tests.
func sources(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	rig.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	}))
	return all.String()
}

func wellFormedJSON(t *testing.T, b block) {
	if !json.Valid([]byte(strings.Join(b.text, "\n"))) {
		t.Error("isn't JSON")
	}
}

func wellFormedTOML(t *testing.T, b block) {
	var v map[string]any
	if err := toml.Unmarshal([]byte(strings.Join(b.text, "\n")), &v); err != nil {
		t.Error(err)
	}
}

// TestRequestWords: the requests in the guide are granted, on a server that has such devices.
func TestRequestWords(t *testing.T) {
	whole, err := newPlace()
	rig.Must(t, err)
	sliced, err := shared.Start("dgx-a100-mig", "v2")
	rig.Must(t, err)
	_, table, ok := strings.Cut(pages(t)["docs/requests.md"], "| words | meaning |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	words := regexp.MustCompile("`([^`]+)`")
	count := 0
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, m := range words.FindAllStringSubmatch(first, -1) {
			count++
			words := strings.TrimSuffix(m[1], "…")
			if strings.ContainsAny(words, "+/") { // the admin has to allow features and other vendors' devices
				if _, err := request.Parse(words); err != nil {
					t.Error(err)
				}
				continue
			}
			a := whole.Run(t, whole.Command(whole.Berth, "alloc", words, "--", "true"))
			b := sliced.Run(t, sliced.Command(sliced.Berth, "alloc", words, "--", "true"))
			if a.Code != 0 && b.Code != 0 {
				t.Errorf("%s is granted nowhere: %s%s", m[1], a.Err, b.Err)
			}
		}
	}
	if !ok || count < 10 {
		t.Errorf("the table has %d requests", count)
	}
}

// TestVerbsAndLinks: each verb of berth that is named exists, and so does each file
// that is linked.
func TestVerbsAndLinks(t *testing.T) {
	help, err := exec.Command(shared.Berth, "--help").Output()
	rig.Must(t, err)
	verbs := regexp.MustCompile("`berth ([a-z]+)")
	links := regexp.MustCompile(`\]\(([^)#]+)`)
	for page, text := range pages(t) {
		for _, m := range verbs.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`(?m)^\s+` + m[1] + `\s`).Match(help) {
				t.Errorf("%s names berth %s, which doesn't exist", page, m[1])
			}
		}
		for _, m := range links.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(top, filepath.Dir(page), m[1])); err != nil && !strings.Contains(m[1], "://") {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}
