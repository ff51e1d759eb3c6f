package gangfile

import (
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

// Where a text is wanted people write numbers, and the other way round.
func TestParseNumbers(t *testing.T) {
	got, err := Parse(strings.NewReader(`
image = "i"
nics = 2
shm-size = 1073741824
restart = 3
timeout = 90
env = { OMP_NUM_THREADS = 4 }
[[role]]
name = "a"
replicas = "2"
gpus = 2
command = ["sleep", 60]
user = 1000
memory = 1073741824
cpus = "1.5"
cpuset-cpus = 3
stop-signal = 15
[[role]]
name = "b"
cpus = 2
`))
	if err != nil {
		t.Fatal(err)
	}
	two := 2
	want := File{
		Image: "i", NICs: "2", ShmSize: "1073741824", Restart: "3", Timeout: "90", Env: map[string]string{"OMP_NUM_THREADS": "4"},
		Roles: []Role{
			{
				Name: "a", Replicas: &two, GPUs: "2", Command: []string{"sleep", "60"}, User: "1000", Memory: "1073741824",
				CPUs: 1.5, CPUSet: "3", StopSignal: "15",
			},
			{Name: "b", CPUs: 2},
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
		{"mistyped in a role", role + "gpu = \"1\"\n", `role "a": "gpu" is not known (did you mean gpus?)`},
		{"mistyped in a role without a name", role + "[[role]]\ngpu = \"1\"\n", `role 2: "gpu" is not known (did you mean gpus?)`},
		{"fraction for a text", role + "gpus = 1.5\n", `role "a": gpus = 1.5 is neither a text nor a whole number: write it in quotes, gpus = "1.5"`},
		{"truth for a text", "restart = true\n" + role, `restart = true is neither a text nor a whole number: write it in quotes, restart = "true"`},
		{"list for a text", role + "gpus = [0, 1]\n", `role "a": gpus is neither a text nor a whole number`},
		{"fraction in env", "env = { LR = 0.5 }\n" + role, `env: LR = 0.5 is neither a text nor a whole number: write it in quotes, LR = "0.5"`},
		{"list for env", role + "env = [\"A=b\"]\n", `role "a": env is a table, such as env = { NAME = "value" }`},
		{"text for a list", role + "command = \"sleep 1\"\n", `role "a": command is a list of words, such as command = ["a", "b"]`},
		{"fraction in a list", role + "command = [\"sleep\", 0.5]\n", `role "a": command: 0.5 is neither a text nor a whole number: write it in quotes, "0.5"`},
		{"list in a list", role + "command = [[\"a\"]]\n", `role "a": command: 1 is neither a text nor a whole number`},
		{"text for a number", role + "replicas = \"two\"\n", `role "a": replicas is a whole number`},
		{"fraction for a number", role + "replicas = 1.0\n", `role "a": replicas is a whole number`},
		{"text for a fraction", role + "cpus = \"some\"\n", `role "a": cpus is a number`},
		{"no number", role + "cpus = nan\n", `role "a": cpus is a number`},
		{"text for the truth", role + "init = \"yes\"\n", `role "a": init is true or false, without quotes`},
		{"bytes that mean more", "shm-size = 8\n" + role, `shm-size = 8 is of bytes: write it with a unit, such as shm-size = "8g"`},
		{"bytes of memory", role + "memory = 512\n", `role "a": memory = 512 is of bytes: write it with a unit, such as memory = "8g"`},
		{"one pair of brackets", "image = \"i\"\n[role]\nname = \"a\"\n", "a role begins with [[role]], in two pairs of brackets"},
		{"no roles", "role = 3\n", "a role begins with [[role]], in two pairs of brackets"},
		{"no variable", "env = { \"A=B\" = \"x\" }\n" + role, `env: "A=B" is no name of a variable`},
		{"no variable of a role", role + "env = { \"\" = \"x\" }\n", `role "a": env: "" is no name of a variable`},
		{"text for labels", "labels = \"X=1\"\n" + role, `labels is a table, such as labels = { NAME = "value" }`},
		{"list for the gang's variables", "env = [\"X=1\"]\n" + role, `env is a table, such as env = { NAME = "value" }`},
		{"no name", "image = \"i\"\n[[role]]\n", "role 1 has no name"},
		{"bad name", "image = \"i\"\n[[role]]\nname = \"A_b\"\n", `role "A_b": a name has at most`},
		{"ends in a dash", "image = \"i\"\n[[role]]\nname = \"a-\"\n", `role "a-": a name has at most`},
		{"twice", role + "[[role]]\nname = \"a\"\n", `two roles are named "a"`},
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
