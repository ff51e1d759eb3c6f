package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The shells themselves complete with what packaging ships. Each is given a line and
// prints what it offers.
const (
	askBash = `source "$1"
COMP_WORDS=($2); [[ $2 != *' ' ]] || COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
_berth && printf '%s\n' "${COMPREPLY[@]}"`

	askFish = `source $argv[1]; complete -C $argv[2]`

	// zsh completes for an editor alone: one in a terminal of its own, which is told to
	// say when it is ready and when it is done.
	askZsh = `zmodload zsh/zpty
zpty shell env TERM=dumb COLUMNS=400 LINES=100 zsh -f -i
zpty -w shell "PROMPT= RPROMPT= LISTMAX=10000; unsetopt list_ambiguous auto_menu; fpath=(${1:h} \$fpath); autoload -Uz compinit; compinit -D -u; bindkey '^X?' list-choices; zle-line-init() { print rea''dy }; zle -N zle-line-init"
zpty -r shell said '*ready*'
zpty -n -w shell "$2"$'\x18?'
zpty -n -w shell $'\x15echo do\'\'ne\n'
zpty -r shell said '*done*'
print -r -- "$said"
zpty -d shell`
)

// fishFiles has fish offer files to those verbs alone that take them.
func fishFiles(app *cli.App) string {
	var b strings.Builder
	none := func(when string) { fmt.Fprintf(&b, "complete -c berth -n '%s' -f\n", when) }
	none("__fish_berth_no_subcommand")
	for _, v := range verbsOf("", app.Commands) {
		if kind := operands()[v.name]; kind == "file" || kind == "image" {
			continue
		}
		when := "__fish_seen_subcommand_from " + v.name + notApptainer(v.name)
		for _, sub := range v.subs {
			if operands()[sub.name] == "file" {
				when += "; and not __fish_seen_subcommand_from " + lastWord(sub.name)
			}
		}
		none(when)
	}
	return b.String()
}

// fishPaths has fish offer files behind the flags that want them, which the library forbids.
func fishPaths(app *cli.App, text string) string {
	for _, v := range leafVerbs(verbsOf("", app.Commands)) {
		for _, o := range v.flags {
			if name := strings.TrimLeft(o.names[0], "-"); o.value == "file" || o.value == "directory" {
				text = strings.ReplaceAll(text, " -f -l "+name+" ", " -F -l "+name+" ")
			}
		}
	}
	return text
}

// fishVerbs has fish tell verbs from values: the library takes the containerd of
// "berth --engine containerd" for that of "berth setup containerd".
func fishVerbs(app *cli.App, text string) string {
	begin, end := strings.Index(text, "    for i in "), strings.Index(text, "    return 0\nend\n")
	var valued []string
	for _, o := range optionsOf("", app.Flags) {
		if o.value != "" {
			valued = append(valued, o.names...)
		}
	}
	return text[:begin] + "    set -l value no\n    for i in (commandline -opc)[2..-1]\n" +
		"        if test $value = yes\n            set value no\n            continue\n        end\n" +
		"        switch $i\n            case " + strings.Join(valued, " ") + "\n                set value yes\n" +
		"            case '-*'\n            case '*'\n                return 1\n        end\n    end\n" + text[end:]
}

func TestCompletionsInShells(t *testing.T) {
	for _, shell := range []struct {
		name, file string
		command    []string
	}{
		{"bash", "berth.bash", []string{"bash", "--norc", "-c", askBash, "bash"}},
		{"zsh", "_berth", []string{"zsh", "-f", "-c", askZsh, "zsh"}},
		{"fish", "berth.fish", []string{"fish", "--no-config", "-c", askFish}},
	} {
		t.Run(shell.name, func(t *testing.T) {
			if _, err := exec.LookPath(shell.name); err != nil {
				testutil.SkipOrFail(t, err.Error())
			}
			file, err := filepath.Abs(filepath.Join("../../packaging/completions", shell.file))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "somewhere"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, tt := range []completion{
				{"berth ", []string{"run", "alloc", "setup", "doctor", "cdi"}, "probe"},
				{"berth ", nil, "somewhere"},
				{"berth se", []string{"setup"}, "doctor"},
				{"berth setup ", []string{"docker", "containerd", "podman"}, "run"},
				{"berth setup docker --d", []string{"--default", "--dry-run"}, "--remove"},
				{"berth cdi ", []string{"generate", "list", "remove", "validate"}, "setup"},
				{"berth cdi generate --n", []string{"--nvidia"}, "--json"},
				{"berth cdi generate --output ", []string{"somewhere"}, "setup"},
				{"berth setup ", nil, "somewhere"},
				{"berth gpus ", nil, "somewhere"},
				{"berth cdi validate ", []string{"somewhere"}, ""},
				{"berth run ", []string{"somewhere"}, ""},
				{"berth alloc ", []string{"1", "all"}, "somewhere"},
				{"berth run --gpus ", []string{"1", "all"}, "podman"},
				{"berth -", []string{"--config", "--engine", "--containerd-address", "--version"}, "--gpus"},
				{"berth --engine ", []string{"native", "containerd"}, "run"},
				{"berth --engine containerd ", []string{"run", "ps"}, "--default"},
				{"berth --engine containerd ps --", []string{"--all"}, "--config"},
				{"berth --config somewhere ps --", []string{"--all"}, "--engine"},
				{"berth ps --filter ", []string{"exited"}, "until"},
				{"berth prune --filter ", []string{"until", "label"}, "exited"},
				{"berth exec --pri", nil, "--privileged"},
				{"berth run --pull ", []string{"missing", "always", "never"}, "somewhere"},
				{"berth run --restart ", []string{"no", "unless-stopped"}, "somewhere"},
				{"berth run --cap-add ", []string{"ALL", "NET_ADMIN"}, "MKNOD"},
				{"berth run --runtime ", []string{"crun", "runc"}, ""},
			} {
				checkOffers(t, dir, append(slices.Clone(shell.command), file), tt)
			}
		})
	}
}

// completion is a command line with some of the words that a shell offers for its end, and one that it doesn't offer.
type completion struct {
	line string
	has  []string
	not  string
}

// checkOffers compares the words that a shell offers for a line with the expected ones. The command prints them for the line, its last argument.
func checkOffers(t *testing.T, dir string, command []string, want completion) {
	t.Helper()
	cmd := exec.Command(command[0], append(slices.Clone(command[1:]), want.line)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LC_ALL=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", want.line, err, out)
	}
	offers := regexp.MustCompile(`[-\w]+`).FindAllString(string(out), -1)
	for _, word := range want.has {
		if !slices.Contains(offers, word) {
			t.Errorf("%q: %s isn't offered: %q", want.line, word, out)
		}
	}
	if slices.Contains(offers, want.not) {
		t.Errorf("%q: %s is offered: %q", want.line, want.not, out)
	}
}

// TestApptainerInShells: the links of the package berth-apptainer are completed as berth apptainer is.
func TestApptainerInShells(t *testing.T) {
	dir := t.TempDir() // with the names of the packages
	for from, to := range map[string]string{"berth.bash": "berth", "apptainer.bash": "apptainer", "_berth": "_berth", "_apptainer": "_apptainer", "berth.fish": "berth.fish", "apptainer.fish": "apptainer.fish"} {
		data, err := os.ReadFile(filepath.Join("../../packaging/completions", from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "image.sif"), nil, 0o644))
	for shell, command := range map[string][]string{
		"bash": {"bash", "--norc", "-c", strings.Replace(askBash, "_berth &&", `"$(complete -p "${2%% *}" | grep -o '_berth[a-z_]*')" &&`, 1), "bash", dir + "/apptainer"},
		"zsh":  {"zsh", "-f", "-c", askZsh, "zsh", dir + "/_apptainer"},
		"fish": {"fish", "--no-config", "-c", "source (path dirname $argv[1])/berth.fish; " + askFish, dir + "/apptainer.fish"},
	} {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil {
				testutil.SkipOrFail(t, err.Error())
			}
			for _, tt := range []completion{
				{"apptainer ", []string{"exec", "run", "shell", "inspect"}, "doctor"},
				{"singularity ins", []string{"inspect"}, "run"},
				{"apptainer instance ", []string{"start", "run", "list", "stop"}, "doctor"},
				{"apptainer exec --n", []string{"--nv", "--no-home"}, "--contain"},
				{"apptainer exec --gpus ", []string{"1", "all"}, "doctor"},
				{"singularity run ", []string{"image"}, "doctor"},
				{"apptainer exec --nv im", []string{"image"}, "inspect"},
			} {
				checkOffers(t, dir, command, tt)
			}
		})
	}
}

// TestColonsInBash: names of images with a colon are completed, although a colon ends a word for bash.
func TestColonsInBash(t *testing.T) {
	file, err := filepath.Abs("../../packaging/completions/berth.bash")
	if err != nil {
		t.Fatal(err)
	}
	const script = `source "$1"; berth() { printf '%s\n' reg.example:5000/box:1 reg.example:5000/box:2 other:1; }
COMP_LINE="berth rmi $2" COMP_POINT=${#COMP_LINE} COMP_WORDS=(berth rmi $(sed 's/:/ : /g' <<<"$2"))
[ "${2: -1}" != : ] || COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _berth; echo "${COMPREPLY[@]}"`
	for typed, want := range map[string]string{
		"reg.example:5": "5000/box:1 5000/box:2", "reg.example:5000/box:": "1 2", "o": "other:1", "nosuch:": "",
	} {
		out, err := exec.Command("bash", "--norc", "-c", script, "bash", file, typed).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%s is completed by %q, %v, want %q", typed, got, err, want)
		}
	}
}
