package setup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	v2 = `plugins."io.containerd.grpc.v1.cri"`
	v3 = `plugins."io.containerd.cri.v1.runtime"`
	// runcAlone is what containerd says of itself, as far as it matters.
	runcAlone = `.containerd]
default_runtime_name = "runc"
[PLUGIN.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
sandboxer = "podsandbox"
base_runtime_spec = ""
pod_annotations = []
[PLUGIN.containerd.runtimes.runc.options]
BinaryName = ""
SystemdCgroup = true
`
	berthsDropIn = "/etc/containerd/conf.d/berth.toml"
)

func dumpOf(plugin string, imports ...string) string {
	quoted := strings.Join(imports, `", "`)
	if quoted != "" {
		quoted = `"` + quoted + `"`
	}
	return "imports = [" + quoted + "]\n[" + strings.ReplaceAll(plugin+runcAlone, "PLUGIN", plugin)
}

// dumped sets containerd up on a machine where it says this of itself.
func (m machine) dumped(t *testing.T, version, dump string, o Options) (machine, Plan) {
	t.Helper()
	h := m.host(version)
	h.Dump = dump
	p, err := planContainerd(h, o, m.record(t, "containerd"))
	if err != nil {
		t.Fatal(err)
	}
	return m.with(t, p), p
}

// TestContainerdDropIn: from 2.0 on, the plan is a drop-in and one line in the main file.
func TestContainerdDropIn(t *testing.T) {
	const head = "# Written by berth setup containerd; berth setup containerd --remove takes it away.\n"
	own := func(version, plugin string) string {
		return head + "version = " + version + "\n\n[" + plugin + ".containerd.runtimes.berth]\nruntime_type = \"io.containerd.runc.v2\"\n" +
			"pod_annotations = [\"berth.*\", \"berth.gpus/*\"]\ncontainer_annotations = [\"berth.*\"]\n\n[" + plugin + ".containerd.runtimes.berth.options]\n" +
			"SystemdCgroup = true\nBinaryName = \"/usr/bin/berth-runtime\"\n"
	}
	const imports = `imports = ["` + berthsDropIn + `"]`
	for _, c := range []struct{ name, text, dump, want, own string }{
		{"no file", "", dumpOf(v3), "version = 3\n" + imports + "\n", own("3", v3)},
		{"comments alone", "# x\n", dumpOf(v3), "", ""},
		{"version 3", "version = 3 # three\n\n[" + v3 + "]\n", dumpOf(v3), "version = 3 # three\n" + imports + "\n\n[" + v3 + "]\n", own("3", v3)},
		{"version 2", "version = 2\n", dumpOf(v3), "version = 2\n" + imports + "\n", own("2", v2)},
		{"imports", "version = 3\nimports = [\n  '/a.toml', # a\n]\n", dumpOf(v3, "/a.toml"), "version = 3\nimports = [\n  '/a.toml', \"" + berthsDropIn + "\", # a\n]\n", own("3", v3)},
		{"printed by containerd 2.2, and not imported", "version = 3\n", dumpOf(v3, "/etc/containerd/conf.d/*.toml"), "version = 3\n" + imports + "\n", own("3", v3)},
		{"imported already", "version = 3\nimports = ['conf.d/*.toml']\n", dumpOf(v3, "conf.d/*.toml"), "version = 3\nimports = ['conf.d/*.toml']\n", own("3", v3)},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := machine{"/etc/containerd/x": "", containerdConfigPath: c.text}
			if c.text == "" {
				delete(before, containerdConfigPath)
			}
			if c.want == "" { // as without a file
				c.want, c.own = c.text+"version = 3\n"+imports+"\n", own("3", v3)
			}
			after, _ := before.dumped(t, "2.1.9", c.dump, usual)
			if diff := cmp.Diff([]string{c.want, c.own}, []string{after[containerdConfigPath], after[berthsDropIn]}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if back, _ := after.unset(t, "containerd"); !cmp.Equal(before, back) {
				t.Error(cmp.Diff(before, back))
			}
		})
	}
}

// TestContainerdEdit: before 2.0, the plan edits the last file that sets the plugin.
func TestContainerdEdit(t *testing.T) {
	const (
		runc    = "\n[" + v2 + ".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"
		berth   = "\n[" + v2 + ".containerd.runtimes.berth]\nruntime_type = \"io.containerd.runc.v2\"\npod_annotations = [\"berth.*\", \"berth.gpus/*\"]\ncontainer_annotations = [\"berth.*\"]\n"
		options = "\n[" + v2 + ".containerd.runtimes.berth.options]\nSystemdCgroup = true\nBinaryName = \"/usr/bin/berth-runtime\"\n"
		dflt    = "\n[" + v2 + ".containerd]\ndefault_runtime_name = \"berth\"\n"
		cni     = "version = 2\n\n[plugins]\n  [" + v2 + "] # x\n    [" + v2 + ".cni]\n      bin_dir = \"/usr/lib/cni\"\n"
	)
	for _, c := range []struct {
		name, text string
		options    Options
		want       string
	}{
		{"no file", "", usual, "version = 2\n" + runc + berth + options},
		{"without runtimes", cni, usual, cni + runc + berth + options},
		{"with runtimes", cni + runc, withDefault(), cni + runc + dflt + berth + options},
		{
			"another default", "version = 2\n[" + v2 + ".containerd]\n  default_runtime_name = 'x' # x\n" + runc, withDefault(),
			"version = 2\n[" + v2 + ".containerd]\n  default_runtime_name = \"berth\" # x\n" + runc + berth + options,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := machine{"/etc/containerd/x": "", containerdConfigPath: c.text}
			if c.text == "" {
				delete(before, containerdConfigPath)
			}
			after, _ := before.dumped(t, "1.6.20", dumpOf(v2), c.options)
			if diff := cmp.Diff(c.want, after[containerdConfigPath]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if back, _ := after.unset(t, "containerd"); !cmp.Equal(before, back) {
				t.Error(cmp.Diff(before, back))
			}
			// By key, after the admin has added something.
			if c.text != "" {
				after[containerdConfigPath] = "# more\n" + after[containerdConfigPath]
				back, p := after.unset(t, "containerd")
				if want := "# more\n" + strings.ReplaceAll(c.text, "'x'", "'x'"); back[containerdConfigPath] != want || len(p.Notes) > 0 {
					t.Errorf("%v: %s", p.Notes, cmp.Diff(want, back[containerdConfigPath]))
				}
			}
		})
	}
	// The last file that says anything of the plugin counts.
	other := machine{containerdConfigPath: "version = 2\nimports = [\"/b.toml\"]\n[" + v2 + "]\n", "/b.toml": "version = 2\n[" + v2 + "]\n"}
	dump := dumpOf(v2, containerdConfigPath, "/b.toml")
	if after, p := other.dumped(t, "1.7.2", dump, usual); len(p.Changes) != 1 || !strings.Contains(after["/b.toml"], "runtimes.berth") {
		t.Errorf("%+v", p.Changes)
	}
}

// TestContainerdNVIDIA: a runtime of NVIDIA's is pointed at berth, and CDI is turned on.
func TestContainerdNVIDIA(t *testing.T) {
	dump := dumpOf(v3) + "[" + v3 + "]\nenable_cdi = false\n[" + v3 + ".containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\npod_annotations = [\"nvidia.*\"]\n"
	m := machine{containerdConfigPath: "version = 3\n"}
	after, _ := m.dumped(t, "2.0.0", dump, usual)
	for _, want := range []string{
		"enable_cdi = true\n", "runtimes.nvidia]\npod_annotations = [\"nvidia.*\", \"berth.*\", \"berth.gpus/*\"]\n", "runtimes.nvidia.options]\nBinaryName = \"/usr/bin/berth-runtime\"\n",
	} {
		if !strings.Contains(after[berthsDropIn], want) {
			t.Errorf("%q isn't there: %s", want, after[berthsDropIn])
		}
	}
}

// TestContainerdVerify: the check of containerd's output after the change.
func TestContainerdVerify(t *testing.T) {
	before := dumpOf(v3)
	berth := "[" + v3 + ".containerd.runtimes.berth.options]\nBinaryName = \"/usr/bin/berth-runtime\"\nRoot = \"\"\n"
	for _, c := range []struct{ name, after, want string }{
		{"berth's part", before + berth, ""},
		{"and a value as it is of itself", before + "[other]\nx = []\n" + berth, ""},
		{"nothing", before, "another file says otherwise of the runtime berth"},
		{"another default", strings.ReplaceAll(before+berth, `= "runc"`, `= "x"`), ""},
		{"another plugin's", before + "[other]\nx = 1\n" + berth, "more than berth's part would change: other"},
		{"another runtime's", strings.ReplaceAll(before+berth, "SystemdCgroup = true", ""), "more than berth's part would change: plugins.io.containerd.cri.v1.runtime.containerd.runtimes.runc.options"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, p := machine{containerdConfigPath: "version = 3\n"}.dumped(t, "2.1.9", before, usual)
			err := p.Check.Verify(c.after)
			if got := map[bool]string{true: ""}[err == nil]; err != nil {
				got = err.Error()
				if got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			} else if c.want != "" {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestContainerdRefuses(t *testing.T) {
	for _, c := range []struct {
		name, text, dump, refusal, want string
	}{
		{"broken", "version = 2\n[a\n", "", "x", "/etc/containerd/config.toml: line 2, column 3: expected ']' to close table name"},
		{"of docker's package", "disabled_plugins = [\"cri\"]\n", "disabled_plugins = [\"cri\"]\n", "", "/etc/containerd/config.toml disables the CRI plugin, and only that reads runtimes: docker and ctr --runc-binary need nothing here"},
		{"version 1", "root = \"/x\"\n", dumpOf(v2), "", "/etc/containerd/config.toml is of version 1, and berth edits 2 and 3: bring it to one of these (containerd config migrate shows how)"},
		{"version 4", "version = 4\n", dumpOf(v2), "", "/etc/containerd/config.toml is of version 4; 2 and 3 are known"},
		{"what containerd refuses", "version = 2\n", "", "plugin x", "containerd refuses /etc/containerd/config.toml as it is: plugin x"},
		{"an inline table", "version = 2\nplugins = {\"io.containerd.grpc.v1.cri\" = {}}\n", dumpOf(v2), "", `/etc/containerd/config.toml: plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.runtime_type can't be set: it stands in an inline table or behind a dotted key`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine{containerdConfigPath: c.text}.host("1.7.0")
			h.Dump, h.Refusal = c.dump, c.refusal
			if _, err := planContainerd(h, usual, nil); err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// TestContainerdOtherDefault: berth's runtime gets the settings of runc and not those of a default
// runtime of another type.
func TestContainerdOtherDefault(t *testing.T) {
	dump := strings.Replace(dumpOf(v3), `default_runtime_name = "runc"`, `default_runtime_name = "kata"`, 1) +
		"[" + v3 + ".containerd.runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n"
	after, _ := machine{containerdConfigPath: "version = 3\n"}.dumped(t, "2.1.9", dump, usual)
	if !strings.Contains(after[berthsDropIn], "SystemdCgroup = true\n") {
		t.Errorf("berth's runtime isn't like runc's:\n%s", after[berthsDropIn])
	}
}
