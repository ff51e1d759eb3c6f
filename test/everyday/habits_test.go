package everyday

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// habit is a command line of another tool, and what berth does with it.
type habit struct {
	// typed is the command line as users of the tool know it.
	typed string
	// tried is the command line with berth. By default berth takes the tool's place in typed.
	tried string
	// before and after are shell lines around it: the tasks that it is about, and what shows its effect.
	before, after string
	// want is the whole output, on both streams. "…" stands for any text.
	want string
	// differs is the reason for a result that is not the tool's.
	differs string
	// instead is the command line that a refusal suggests. It is run with before and after, and
	// must print want.
	instead string
}

// outcome is the result of a habit; the page shows the messages of refusals.
type outcome struct {
	habit
	refusal string
}

// tool is a program with its habits.
type tool struct {
	name, intro string
	// names are the tool's commands whose place berth takes.
	names  []string
	habits []habit
}

// habitTools are the tools. Slurm's commands are verbs of berth (berth squeue).
func habitTools() []tool {
	return []tool{
		{"docker", "Each line is run with `berth` in the place of `docker`.", []string{"docker"}, dockerHabits},
		{"Apptainer", "Each line is run with `berth` in the place of `apptainer`, and of `singularity`.", []string{"apptainer", "singularity"}, apptainerHabits},
		{"Slurm", "The first line is Slurm's, the second the line that was run with berth.", nil, slurmHabits},
	}
}

// line returns the command line that is run.
func (tl tool) line(h habit) string {
	if h.tried != "" {
		return h.tried
	}
	line := h.typed
	for _, name := range tl.names {
		line = regexp.MustCompile(`\b`+name+` `).ReplaceAllString(line, "berth ")
	}
	return line
}

// TestHabits runs the command lines of other tools' users. Each works, works differently for a
// reason, or is refused with a suggestion, which then works.
func TestHabits(t *testing.T) {
	n := newHabitNode(t)
	tools := habitTools()
	outcomes := make([][]outcome, len(tools))
	for i, tl := range tools {
		for _, h := range tl.habits {
			t.Run(tl.name+"/"+h.typed, func(t *testing.T) {
				outcomes[i] = append(outcomes[i], n.try(t, tl, h))
			})
		}
	}
	if !t.Failed() && !partial() {
		compare(t, "../../docs/reference/habits.md", habitsPage(tools, outcomes))
	}
}

// partial reports whether only some of the subtests were asked for.
func partial() bool {
	return slices.ContainsFunc(os.Args, func(a string) bool { return strings.Contains(a, "TestHabits/") })
}

// try runs a habit, and the suggestion if it is refused.
func (n habitNode) try(t *testing.T, tl tool, h habit) outcome {
	line := tl.line(h)
	if h.instead == "" {
		text, code := n.sh(t, h.before, line, h.after)
		if !matches(h.want, text) {
			t.Errorf("%s\nprints (%d):\n%s\nwant:\n%s", line, code, text, h.want)
		}
		return outcome{h, ""}
	}
	refusal, code := n.sh(t, h.before, line, "")
	refusal, isOne := strings.CutSuffix(refusal, "\n")
	if code == 0 || !isOne || strings.Contains(refusal, "\n") || !strings.HasPrefix(refusal, "berth: ") {
		t.Errorf("%s\nisn't refused with one line, exit code %d:\n%s", line, code, refusal)
	}
	for _, word := range newWords(line, h.instead) {
		if !strings.Contains(refusal, word) {
			t.Errorf("%s\nsays: %s\nand doesn't say %s, for\n%s", line, refusal, word, h.instead)
		}
	}
	text, code := n.sh(t, h.before, h.instead, h.after)
	if !matches(h.want, text) {
		t.Errorf("%s\nin place of %s\nprints (%d):\n%s\nwant:\n%s", h.instead, line, code, text, h.want)
	}
	return outcome{h, refusal}
}

// call matches a call of berth in a line of shell.
var call = regexp.MustCompile(`\bberth [a-z]+[^|&;<>]*`)

// newWords lists the verbs and flags of a command that the line in whose place it serves doesn't have.
func newWords(line, instead string) (missing []string) {
	for _, c := range call.FindAllString(instead, -1) {
		words := strings.Fields(c)
		missing = append(missing, "berth "+words[1])
		for _, w := range words[2:] {
			if w == "bash" || w == "sh" || w == "python" { // what follows are its own flags
				break
			}
			if flag, _, _ := strings.Cut(w, "="); strings.HasPrefix(flag, "-") {
				missing = append(missing, flag)
			}
		}
	}
	return slices.DeleteFunc(missing, func(w string) bool { return strings.Contains(line+" ", w+" ") || strings.Contains(line, w+"=") })
}

// matches compares a text with a pattern, in which "…" stands for any text.
func matches(pattern, text string) bool {
	return regexp.MustCompile(`(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(pattern)), "…", ".*") + `$`).MatchString(strings.TrimSpace(text))
}

// habitNode is a server with eight GPUs, and a registry that has every image.
type habitNode struct {
	*rig.Node
	dir string
}

func newHabitNode(t *testing.T) habitNode {
	t.Helper()
	n, err := shared.StartApart("dgx-h100", "v1")
	rig.Must(t, err)
	h := habitNode{n, filepath.Join(shared.Dir, "habits")}
	layout := filepath.Join(h.dir, "images")
	rig.Must(t, os.MkdirAll(h.dir, 0o755))
	rig.Must(t, pythonImage(layout))
	address, err := n.Serve(&fake.Registry{Dir: layout})
	rig.Must(t, err)
	hosts := filepath.Join(h.dir, "hosts")
	rig.Must(t, os.MkdirAll(filepath.Join(hosts, "_default"), 0o755))
	rig.Must(t, os.WriteFile(filepath.Join(hosts, "_default", "hosts.toml"), []byte(fmt.Sprintf("server = %q\n", "http://"+address)), 0o644))
	// Layers are unpacked in advance, because slow unpacking is reported.
	defer func() { h.Do(t, h.Berth, "pull", "-q", "ubuntu") }()
	h.Do(t, "sh", "-c", `mkdir -p /etc/berth && printf '%s\n' "$0" >/etc/berth/config.toml`, fmt.Sprintf("[run]\nhosts_dir = [%q]", hosts))
	return h
}

// pythonImage makes an image of Debian with programs that report what they see, under all tags in
// use.
func pythonImage(dir string) error {
	if err := rig.MakeImages(); err != nil {
		return err
	}
	base, err := debianLayer()
	if err != nil {
		return err
	}
	const says = "#!/bin/sh\necho \"$(basename \"$0\") $*: $(ls /dev | grep -c '^nvidia[0-9]') GPUs in $PWD\"\n"
	var programs []oci.File
	for _, name := range []string{"python", "torchrun", "jupyter"} {
		programs = append(programs, oci.File{Name: "usr/local/bin/" + name, Mode: 0o755, Body: says})
	}
	if err := oci.Write(dir, oci.Image{Tag: "latest", Layers: []oci.Layer{{Tar: base}, {Tar: oci.Tar(programs...)}}, Config: ispec.ImageConfig{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"/bin/bash"}, WorkingDir: "/workspace",
	}}); err != nil {
		return err
	}
	return addTags(dir, "24.04", "25.01-py3", "12.6.0-base-ubuntu24.04")
}

// addTags gives the only image of a layout further tags.
func addTags(dir string, tags ...string) error {
	data, err := os.ReadFile(filepath.Join(dir, ispec.ImageIndexFile))
	if err != nil {
		return err
	}
	var index ispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return err
	}
	for _, tag := range tags {
		d := index.Manifests[0]
		d.Annotations = map[string]string{ispec.AnnotationRefName: tag}
		index.Manifests = append(index.Manifests, d)
	}
	return oci.WriteIndex(dir, index.Manifests)
}

// debianLayer is the largest file of the Debian image.
func debianLayer() (io.Reader, error) {
	blobs, err := filepath.Glob("../../.cache/image/debian/blobs/sha256/*")
	if err != nil {
		return nil, err
	}
	for _, name := range blobs {
		if info, err := os.Stat(name); err == nil && info.Size() > 1<<20 {
			f, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			return gzip.NewReader(f)
		}
	}
	return nil, errors.New("the Debian image has no layer")
}

// memlock is the value of --ulimit for as much locked memory as this root may give.
func memlock(t *testing.T) string {
	t.Helper()
	var limit unix.Rlimit
	rig.Must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	raised := unix.Rlimit{Cur: limit.Cur, Max: unix.RLIM_INFINITY}
	if unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &raised, nil) != nil {
		return fmt.Sprintf("memlock=%d", limit.Max)
	}
	rig.Must(t, unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &limit, nil))
	return "memlock=-1"
}

// sh runs lines in an empty home directory, at a terminal if a line asks for one, and removes
// the tasks that they leave. The exit code is that of line.
func (n habitNode) sh(t *testing.T, before, line, after string) (text string, code int) {
	t.Helper()
	home, err := os.MkdirTemp(n.dir, "home-")
	rig.Must(t, err)
	defer os.RemoveAll(home)
	rig.Must(t, os.CopyFS(home, os.DirFS("testdata/home")))
	// A machine that withholds CAP_SYS_RESOURCE raises no limit.
	line = strings.ReplaceAll(line, "memlock=-1", memlock(t))
	script := fmt.Sprintf("soon() { n=0; until \"$@\" >/dev/null 2>&1; do n=$((n + 1)); [ $n -lt 200 ] || return 1; sleep 0.1; done; }\n%s\n%s\ncode=$?\n%s\nexit $code\n", before, line, after)
	rig.Must(t, os.WriteFile(filepath.Join(home, ".script"), []byte(script), 0o644))
	words := []string{"sh", ".script"}
	if strings.Contains(line, " -it ") {
		words = []string{"script", "-qec", "stty -onlcr; sh .script", "/dev/null"}
	}
	out, err := os.CreateTemp(n.dir, "out-")
	rig.Must(t, err)
	defer os.Remove(out.Name())
	defer out.Close()
	cmd := n.Command("env", append([]string{
		"-C", home, "HOME=" + home, "USER=alice", "PATH=" + shared.Dir + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		"timeout", "--kill-after=5", "60",
	}, words...)...)
	cmd.Stdout, cmd.Stderr = out, out
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out.Name())
	rig.Must(t, err)
	n.Do(t, "sh", "-c", `all=$("$0" ps -aq); [ -z "$all" ] || "$0" rm -f $all >/dev/null`, n.Berth)
	return strings.NewReplacer(home, "HOME", "\r", "", "^@", "", "\x00", "").Replace(normalize(string(data))), cmd.ProcessState.ExitCode()
}
