package gangfile

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	two := 2
	got, err := Parse(strings.NewReader(`
name = "pipeline"
image = "img"
network = "none"
shm-size = "1g"
world = "gang"
env = { A = "b" }

[[role]]
name = "decode"
command = ["sh", "-c", "true"]

[[role]]
name = "infer"
replicas = 2
gpus = "2,mem>=40G"
image = "other"
read-only = true
`))
	if err != nil {
		t.Fatal(err)
	}
	want := File{
		Name: "pipeline", Image: "img", Network: "none", ShmSize: "1g", World: "gang", Env: map[string]string{"A": "b"},
		Roles: []Role{
			{Name: "decode", Command: []string{"sh", "-c", "true"}},
			{Name: "infer", Replicas: &two, GPUs: "2,mem>=40G", Image: "other", ReadOnly: true},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseBad(t *testing.T) {
	role := "image = \"i\"\n[[role]]\nname = \"a\"\n"
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", "no [[role]]"},
		{"no TOML", "a = [", "line 1: "},
		{"mistyped", "nmae = \"x\"\n" + role, `"nmae" is not known (did you mean name?)`},
		{"mistyped in a role", role + "gpu = \"1\"\n", `"gpu" of a role is not known (did you mean gpus?)`},
		{"number for a text", "name = 3\n" + role, `line 1: "name" is a text, in quotes: name = "…"`},
		{"number for a text of a role", role + "gpus = 2\n", `"gpus" of a role is a text, in quotes: gpus = "…"`},
		{"text for a number", role + "replicas = \"2\"\n", `"replicas" of a role is a number, without quotes: replicas = 2`},
		{"text for a list", role + "command = \"sleep 1\"\n", `"command" of a role is a list of texts: command = ["…", "…"]`},
		{"number in a list", role + "command = [\"sleep\", 1]\n", `"command" of a role is a list of texts`},
		{"text for true", role + "init = \"yes\"\n", `"init" of a role is true or false, without quotes`},
		{"one role", "image = \"i\"\n[role]\nname = \"a\"\n", "line 2: each role begins with [[role]], in two brackets"},
		{"number for a variable", role + "env = { X = 1 }\n", `"env" of a role is names and texts: env = { NAME = "…" }`},
		{"list for variables", role + "env = [\"X=1\"]\n", `"env" of a role is names and texts: env = { NAME = "…" }`},
		{"list for the gang's variables", "env = [\"X=1\"]\n" + role, `line 1: "env" is names and texts: env = { NAME = "…" }`},
		{"text for labels", "labels = \"X=1\"\n" + role, `line 1: "labels" is names and texts: labels = { NAME = "…" }`},
		{"no variable", "env = { \"A=B\" = \"x\" }\n" + role, `env: "A=B" is no name of a variable`},
		{"no variable of a role", role + "env = { \"\" = \"x\" }\n", `role "a": env: "" is no name of a variable`},
		{"no name", "image = \"i\"\n[[role]]\n", "role 1 has no name"},
		{"bad name", "image = \"i\"\n[[role]]\nname = \"A_b\"\n", `role "A_b": a name is of`},
		{"ends in a dash", "image = \"i\"\n[[role]]\nname = \"a-\"\n", `role "a-": a name is of`},
		{"twice", role + "[[role]]\nname = \"a\"\n", `role "a" is there twice`},
		{"no replicas", role + "replicas = 0\n", `role "a" has 0 replicas`},
		{"too many", role + "replicas = 257\n", "more than 256 ranks"},
		{"overflow", role + "replicas = 9223372036854775807\n[[role]]\nname = \"b\"\nreplicas = 9223372036854775807\n", "more than 256 ranks"},
		{"no image", "[[role]]\nname = \"a\"\n", `role "a" has no image`},
		{"world", "world = \"all\"\n" + role, `world = "all" is not known: it is "gang" or "role"`},
		{"too long", strings.Repeat("#", 1<<20+1), "longer than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Parse(strings.NewReader(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// The words that are suggested are those that are read.
func TestKeys(t *testing.T) {
	for _, tt := range []struct {
		of   any
		keys []string
	}{{File{}, keys()}, {Role{}, roleKeys()}} {
		var tags []string
		for i := range reflect.TypeOf(tt.of).NumField() {
			tags = append(tags, reflect.TypeOf(tt.of).Field(i).Tag.Get("toml"))
		}
		slices.Sort(tags)
		if want := slices.Sorted(slices.Values(tt.keys)); !slices.Equal(tags, want) {
			t.Errorf("%T: %v, and known are %v", tt.of, tags, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("image = \"i\"\n[[role]]\nname = \"a\"\nreplicas = 2\n")
	f.Add("[[role]]\n[role.env]\nA=\"b\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		n := 0
		for _, r := range file.Roles {
			n += r.Count()
		}
		if n < 1 || n > MaxRanks {
			t.Errorf("%d ranks", n)
		}
	})
}
