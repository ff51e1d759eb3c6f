package escape

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// apptainerForm is a way in which root starts an image with Apptainer's words.
type apptainerForm struct {
	name  string
	file  bool     // the image is a SIF file, and not a directory
	words []string // options
}

// apptainerForms returns the forms. In those that aren't contained, the host's /tmp is in the container, and with it the endangered files: only berth itself has to
// leave them alone.
func apptainerForms() []apptainerForm {
	return []apptainerForm{
		{"file", true, nil},
		{"contained", true, []string{"--containall"}},
		{"directory", false, nil},
		{"written directory", false, []string{"--writable"}},
	}
}

// apptainerPlaces are the paths of an image at which only Apptainer's words mount something, with the host's files to which a link there leads.
func apptainerPlaces() []place {
	return []place{
		{name: "etc/passwd", file: "etc/keep"},
		{name: "etc/group", file: "etc/new"},
		{name: "etc/resolv.conf", file: "etc/new"},
		{name: "etc/hosts", file: "etc/new"},
		{name: "etc/localtime", file: "etc/new"},
		{name: "proc", file: "new"},
		{name: "sys", file: "new"},
		{name: "dev", file: "new"},
		{name: "tmp", file: "new"},
		{name: "var", file: "etc"},
		{name: "var/tmp", file: "new"},
		{name: "root", file: "new"},
	}
}

// apptainerAttacks are the attacks that an image can make which root starts with Apptainer's words: those that need nothing but the image's files and environment.
func apptainerAttacks() []attack {
	return append(ownApptainerAttacks(), slices.DeleteFunc(attacks(), func(a attack) bool {
		kind, _, _ := strings.Cut(a.name, "/")
		switch kind {
		case "loader", "program", "link", "read", "cache", "elf":
			return strings.HasSuffix(a.name, "/random") // it is made many times
		}
		return !slices.Contains([]string{
			"rules/mknod", "rules/image's nodes", "rules/others in proc",
			"forged/NVIDIA_VISIBLE_DEVICES", "forged/none", "forged/BERTH_GPUS", "forged/BERTH_LEASE",
		}, a.name)
	})...)
}

// ownApptainerAttacks are attacks at the paths that only Apptainer's words use.
func ownApptainerAttacks() (all []attack) {
	for _, p := range apptainerPlaces() {
		for kind, climb := range map[string]string{"absolute": "", "climbing": strings.Repeat("../", 40)} {
			all = append(all, attack{name: "apptainer/" + p.name + "/" + kind, class: linked, gained: hostFileWasLost, build: func(s *scene) {
				s.link(p.name, climb+filepath.Join(s.outside, p.file))
				s.play = func() { s.mountNaively(p) }
			}})
		}
		all = append(all, attack{name: "apptainer/" + p.name + "/race", class: "a path is used again after it was checked", gained: hostFileWasLost, build: func(s *scene) {
			if strings.HasPrefix(p.name, "etc/") {
				s.write(s.in(p.name), "")
			} else {
				s.runCommand(os.MkdirAll(s.in(p.name), 0o755))
			}
			s.flipped = &p
			s.play = func() {
				s.link(p.name, filepath.Join(s.outside, p.file)) // the race is won
				s.mountNaively(p)
			}
		}})
	}
	return all
}

// TestApptainer checks that no attack of an image gains anything if root starts the image with Apptainer's words. Attacks at paths that only these words use are
// shown to work on a naive launcher; [TestAttacks] does so for the others.
func TestApptainer(t *testing.T) {
	w := &world{Node: start(t, "v2"), runtime: "runc", cgroup: "v2"}
	w.devices = accelerators(t, w.Node)
	w.Do(t, "chmod", "666", "/dev/fuse") // as udev does
	for i, a := range apptainerAttacks() {
		t.Run(a.name, func(t *testing.T) {
			noteResult(tally.tried, a.name)
			own := strings.HasPrefix(a.name, "apptainer/")
			if own {
				s := newScene(t, w, "naive")
				a.build(s)
				if s.play(); a.gained(s) == "" {
					noteResult(tally.failed, a.name)
					t.Errorf("%s: it doesn't work on the naive launcher", a.class)
				}
			}
			for j, form := range apptainerForms() {
				switch {
				case own && strings.HasSuffix(a.name, "/race"):
					if form.name != "written directory" {
						continue
					}
				case *everywhere:
				case own && (i+j)%4 != 0, !own && (i+j)%12 != 0: // each third of the others in one form
					continue
				}
				t.Run(form.name, func(t *testing.T) {
					s := newScene(t, w, "apptainer")
					a.build(s)
					s.runApptainer(form)
					gained := a.gained(s)
					for _, look := range []func(*scene) string{fileWasChanged, programRan, deviceWasOpened, startHung} {
						if gained == "" {
							gained = look(s)
						}
					}
					if gained == "" && form.name == "contained" {
						gained = fileWasRead(s)
					}
					if gained != "" {
						noteResult(tally.worked, a.name)
						t.Errorf("%s: %s: %s", a.class, gained, s)
					}
				})
			}
		})
	}
}

// TestApptainerWithoutAttack is the control: a harmless image starts in each form, and has its device and no other.
func TestApptainerWithoutAttack(t *testing.T) {
	w := &world{Node: start(t, "v2"), runtime: "runc", cgroup: "v2"}
	w.devices = accelerators(t, w.Node)
	w.Do(t, "chmod", "666", "/dev/fuse")
	for _, form := range apptainerForms() {
		t.Run(form.name, func(t *testing.T) {
			s := newScene(t, w, "apptainer")
			s.env("A=of the image")
			s.addCommand("open /dev/nvidia0", "cat /proc/self/environ")
			s.runApptainer(form)
			if s.said.Code != 0 || s.answers["open /dev/nvidia0"] != "ENXIO" || !strings.Contains(s.answers["cat /proc/self/environ"], "A=of the image") {
				t.Errorf("it doesn't get its device and environment: %s", s)
			}
			if gained := s.checkAll(); gained != "" {
				t.Error(gained)
			}
		})
	}
}

// runApptainer starts the image with berth's words of Apptainer. The image's environment is one of its scripts.
func (s *scene) runApptainer(form apptainerForm) {
	s.t.Helper()
	s.runCommand(exec.Command("cp", "/bin/busybox", s.in("bin/sh")).Run())
	var script bytes.Buffer
	for _, kv := range s.spec.Process.Env {
		name, value, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&script, "export %s='%s'\n", name, value)
	}
	s.write(s.in(".singularity.d/env/90-environment.sh"), script.String())
	image := s.root
	if form.file {
		image = rig.PackSIF(s.t, s.root, "-noI", "-noD", "-noF", "-noX") // without compression, which takes longer than all else
	}
	args := []string{"--kill-after=5", s.timeLimit(), s.w.Berth, "--config", s.config(), "apptainer", "exec"}
	if s.request != "" {
		args = append(args, "--gpus", s.request)
	}
	args = append(append(args, form.words...), image, "/probe")
	starts := 1
	if s.flipped != nil {
		f, err := flip(s.in(s.flipped.name), filepath.Join(s.outside, s.flipped.file))
		s.runCommand(err)
		defer func() { s.runCommand(f.end()) }()
		starts = max(5, *rounds/10)
	}
	for range starts {
		s.said = s.attempt(s.w.Command("timeout", args...))
		if s.won += fileWasChanged(s); s.won != "" {
			break
		}
	}
	lines := s.lines()
	for i, command := range s.commands {
		if len(lines) == len(s.commands) {
			s.answers[command] = lines[i]
		}
	}
}

// mountNaively does what a launcher does that makes and writes the targets of its mounts by their names.
func (s *scene) mountNaively(p place) {
	s.t.Helper()
	if strings.HasPrefix(p.name, "etc/") {
		f, err := os.OpenFile(s.in(p.name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		s.runCommand(err)
		_, err = f.WriteString("of the launcher\n")
		s.runCommand(err)
		s.runCommand(f.Close())
		return
	}
	target, err := exec.Command("readlink", "-m", s.in(p.name)).Output()
	s.runCommand(err)
	s.runCommand(os.MkdirAll(filepath.Join(strings.TrimSpace(string(target)), "tmp"), 0o755))
}
