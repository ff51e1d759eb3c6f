package tasks

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestCompletion: shells offer the tasks that a verb can do something with, the leases,
// and the devices.
func TestCompletion(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	s.detach(t, "--name", "alpha", "--gpus", "1", rig.ImagePath(t, "busybox"), "sleep", "1000")
	id := s.detach(t, "--name", "omega", rig.ImagePath(t, "busybox"), "true")
	s.prints(t, "0\n", "wait", "omega")
	lease := s.Leases(t)[0].ID
	for _, shell := range []string{"bash", "fish"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue // what it would be told is what bash is told
		}
		t.Run(shell, func(t *testing.T) {
			for _, c := range []struct {
				typed      string
				want, none []string
			}{
				{"berth stop ", []string{"alpha"}, []string{"omega", id}},
				{"berth exec -it ", []string{"alpha"}, []string{"omega"}},
				{"berth rm om", []string{"omega"}, []string{"alpha"}},
				{"berth rm " + id[:5], []string{id}, []string{"alpha"}},
				{"berth inspect alpha ", []string{"alpha", "omega"}, nil},
				{"berth logs -f ", []string{"alpha", "omega"}, nil},
				{"berth release ", []string{lease, "alpha"}, []string{"omega"}},
				{"berth run --gpus GPU-", []string{s.Leases(t)[0].Devices[0].UUID[:8]}, []string{"alpha"}},
				{"berth kill --signal ", []string{"TERM", "KILL"}, []string{"alpha"}},
				{"berth in", []string{"inspect"}, []string{"stop"}},
				{"berth run /etc/pass", []string{"/etc/passwd"}, []string{"alpha"}},
			} {
				if shell == "fish" && strings.Contains(c.typed, "--signal") {
					continue
				}
				got := s.complete(t, shell, c.typed)
				for _, w := range c.want {
					if !slices.Contains(got, w) {
						t.Errorf("%q: %s isn't offered: %q", c.typed, w, got)
					}
				}
				for _, w := range c.none {
					if slices.Contains(got, w) {
						t.Errorf("%q: %s is offered", c.typed, w)
					}
				}
			}
		})
	}
}

// complete is what a shell offers behind what was typed.
func (s server) complete(t *testing.T, shell, typed string) (words []string) {
	t.Helper()
	dir, err := filepath.Abs("../../packaging/completions")
	rig.Must(t, err)
	script := `source "$1"; COMP_LINE=$2; read -ra COMP_WORDS <<<"$2"; case $2 in *' ') COMP_WORDS+=('') ;; esac
compopt() { :; }; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _berth; printf '%s\n' "${COMPREPLY[@]}"`
	args := []string{"bash", "-c", script, "bash", filepath.Join(dir, "berth.bash"), typed}
	if shell == "fish" {
		args = []string{"fish", "--no-config", "-c", "source " + filepath.Join(dir, "berth.fish") + "; complete -C " + "'" + typed + "'"}
	}
	out := s.Do(t, "env", append([]string{"HOME=/tmp", "PATH=" + s.Dir + ":/usr/bin:/bin"}, args...)...)
	for _, line := range lines(out) {
		word, _, _ := strings.Cut(line, "\t")
		words = append(words, word)
	}
	return words
}
