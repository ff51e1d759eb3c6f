package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth"
)

// A program that was started without an environment hands none to the real runtime.
func TestEmptyEnvironment(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run", "^TestCountEnvironment$", "-test.v")
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "entries: 0") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCountEnvironment is run by TestEmptyEnvironment.
func TestCountEnvironment(t *testing.T) { t.Logf("entries: %d", len(readEnvironment())) }

func TestScanRuntime(t *testing.T) {
	for _, tt := range []struct {
		name, config, want string
		ok                 bool
	}{
		{"empty", "", "", true},
		{"none", "state = '/run/berth'\n[host]\nsys = '/sys'\n", "", true},
		{"empty value", "runtime = \"\"\n", "", true},
		{"set", "state = '/run/berth'\n\truntime=\"/usr/bin/crun\" # mine\r\n", "/usr/bin/crun", true},
		{"set, literally", "runtime = 'runc'", "runc", true},
		{"in a comment", "# runtime = 'runc'\n", "", true},
		{"below a table", "[host]\nruntime = 'runc'\n", "", true},
		{"before a table", "runtime = 'runc'\n[host]\nsys = ''\n", "runc", true},
		{"in other letters", "Runtime = 'runc'\n", "", false},
		{"as a quoted key", "'runtime' = 'runc'\n", "", false},
		{"as an escaped key", "\"\\u0072untime\" = 'runc'\n", "", false},
		{"with an escape", "runtime = \"run\\u0063\"\n", "", false},
		{"in a value", "data = '/var/runtime'\n", "", false},
		{"over several lines", "runtime = '''\nrunc'''\n", "", false},
		{"twice", "runtime = 'runc'\nruntime = 'runc'\n", "", false},
		{"not closed", "runtime = 'runc\n", "", false},
		{"a number", "runtime = 1\n", "", false},
		{"more behind it", "runtime = 'runc' 'crun'\n", "", false},
		{"a longer key", "runtimes = 'runc'\n", "", false},
	} {
		if got, ok := scanRuntime([]byte(tt.config)); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%s: %q, %t; want %q, %t", tt.name, got, ok, tt.want, tt.ok)
		}
	}
	packaged, err := os.ReadFile("../../packaging/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := scanRuntime(packaged); got != "" || !ok {
		t.Errorf("the packaged configuration: %q, %t", got, ok)
	}
}

// For every configuration that berth accepts, the scan finds what the decoder reads.
func TestScanRuntimeReadsAsTheDecoder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	line := rapid.SampledFrom([]string{
		"runtime", "Runtime", "'runtime'", " = ", "=", "'runc'", `"/bin/crun"`, `"run\u0063"`, "'''runc'''", `""`, "\n", "\n", "\n", "\r\n", "# ", "#", " ",
		"state = '/run/berth'\n", "runtime = 'crun'\n", "runtime = \"/opt/runtime\"\n", "[host]\n", "[run]\n", "host.cdi = [\n'/a', # b\n]\n", "host = { sys = '/sys' }\n", "data = \"\"\"\n/runtime\"\"\"\n",
	})
	compared := 0
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(line, 0, 9).Draw(t, "text"), "")
		name, ok := scanRuntime([]byte(text))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := berth.LoadConfig(path)
		if err != nil || !ok {
			return
		}
		compared++
		if c.Runtime != name {
			t.Fatalf("scanned %q, decoded %q", name, c.Runtime)
		}
	})
	if compared == 0 {
		t.Error("nothing was compared")
	}
}
