package apptainer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	store "github.com/berth-gpu/berth/launcher/image"
)

func TestReferences(t *testing.T) {
	for word, want := range map[string]bool{
		"docker://debian:13": true, "docker://r.example/a@sha256:00": true, "oci:dir:tag": true, "docker-archive:/a.tar": true, "oci-archive:a.tar": true,
		"image.sif": false, "./oci:dir": false, "/oci:dir": false, "dir": false, "a:b,c.sif": false, "ocidir": false, "docker": false,
	} {
		if got := isReference(word); got != want {
			t.Errorf("%s: %v", word, got)
		}
		if err := checkReference(word); err != nil {
			t.Error(err)
		}
	}
	for word, want := range map[string]string{
		"docker:":             "the name of the image is missing, as in docker://debian:13",
		"docker://":           "the name of the image is missing, as in docker://debian:13",
		"oci:":                "the directory of the image is missing, as in oci:DIR or oci:DIR:TAG",
		"docker-archive:":     "the file of the image is missing, as in docker-archive:FILE",
		"docker:debian":       "an image of a registry is docker://debian",
		"docker-daemon:a:1":   "docker save",
		"oras://":             "the name of the image is missing",
		"shub://a/b":          "Singularity Hub has ended",
		"https://a.example/a": "curl -O",
		"instance://train":    "exec, run and shell",
		"ipfs://a":            "images are files, directories, docker://NAME",
	} {
		if err := checkReference(word); err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("image %q: ", word)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

// TestNameSIF: a file that is pulled has the name that Apptainer gives it.
func TestNameSIF(t *testing.T) {
	for ref, want := range map[string]string{
		"oras://r.example:5000/a/app:1.0": "app_1.0.sif", "oras://r.example/app": "app_latest.sif", "library://e/c/app:1": "app_1.sif", "library://app": "app_latest.sif",
		"oras://r.example/app@sha256:00": "app_latest.sif", "oras://..": ".._latest.sif",
	} {
		if got := nameSIF(ref); got != want {
			t.Errorf("%s: %s, want %s", ref, got, want)
		}
	}
}

// TestCommand: arguments replace the default command and follow the entry point.
func TestCommand(t *testing.T) {
	entry, cmd := []string{"e", "f"}, []string{"c"}
	for _, tt := range []struct {
		entry, cmd, args, want []string
		first                  int
	}{
		{entry, cmd, nil, []string{"e", "f", "c"}, 3},
		{entry, cmd, []string{"a", ""}, []string{"e", "f", "a", ""}, 2},
		{entry, nil, nil, entry, 2},
		{entry, nil, []string{"a"}, []string{"e", "f", "a"}, 2},
		{nil, cmd, nil, cmd, 1},
		{nil, cmd, []string{"a"}, []string{"a"}, 0},
		{nil, nil, nil, nil, 0},
	} {
		got, first := content{Config: store.Config{Entrypoint: tt.entry, Cmd: tt.cmd}}.chooseWords(tt.args)
		if !slices.Equal(got, tt.want) || first != tt.first {
			t.Errorf("%+v: %q, %d", tt, got, first)
		}
	}
}

// TestSetEnvironment: PATH is the image's; another variable is, unless it is set and not empty. No value is expanded.
func TestSetEnvironment(t *testing.T) {
	i := content{Config: store.Config{Env: []string{"PATH=/own", "SET=image", "EMPTY=image", "NEW=$HOME `id` 'q' \"d\"\nline", "a.b=1", "LONE", "LD_LIBRARY_PATH=/lib"}}}
	var b strings.Builder
	b.WriteString("PATH=/host SET=host EMPTY= LD_LIBRARY_PATH=/host\n")
	i.setEnvironment(func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) })
	b.WriteString(`echo "$PATH|$SET|$EMPTY|$NEW|$LONE|$LD_LIBRARY_PATH"`)
	if got, want := runShell(t, b.String()), "/own|host|image|$HOME `id` 'q' \"d\"\nline||/lib:/.singularity.d/libs\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestQuoteArgument: a shell expands variables that no backslash precedes, and nothing else changes.
func TestQuoteArgument(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a b": "a b", `"q" 'r'`: `"q" 'r'`, "$A": "x", `\$A`: "$A", `\\$A`: `\x`, `\a\`: `\a\`, `\"`: `\"`, "`echo y`": "y", "\\`": "`", "$(echo z)": "z", "a\\\nb": "a\\\nb", "*": "*",
	} {
		if got := runShell(t, "A=x; printf %s "+quoteArgument(text)); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func FuzzQuoteArgument(f *testing.F) {
	f.Add("\\\"\n'")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ContainsAny(text, "\x00$`") || strings.Contains(text, `\\`) {
			return // no shell script has NUL, and the others are expanded
		}
		if got := runShell(t, "printf %s "+quoteArgument(text)); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	})
}

func TestMergeVariables(t *testing.T) {
	if got, want := mergeVariables([]string{"A=1", "B=2"}, nil, []string{"C=3", "A=4"}), []string{"A=4", "B=2", "C=3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := findVariable([]string{"PATHS=1", "PATH=2", "PATH=3"}, "PATH"); got != "3" {
		t.Errorf("PATH is %q", got)
	}
}

func TestAddVerb(t *testing.T) {
	for line, want := range map[string]string{
		"/usr/bin/berth version":       "/usr/bin/berth version",
		"apptainer -s exec a.sif ls":   "berth apptainer exec a.sif ls",
		"/bin/singularity --version":   "berth apptainer --version --like-apptainer",
		"apptainer version":            "berth apptainer version --like-apptainer",
		"berth-apptainer --version":    "berth apptainer --version",
		"apptainer exec a.sif version": "berth apptainer exec a.sif version",
	} {
		if got := strings.Join(AddVerb(strings.Fields(line)), " "); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}
