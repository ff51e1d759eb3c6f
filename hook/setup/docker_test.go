package setup

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const (
	stubLink = "/data/engines/docker/nvidia-container-runtime-hook"
	unitFile = "/usr/lib/systemd/system/docker.service"
	ours     = `{"path":"/usr/bin/berth-runtime"}`
)

// TestDockerFiles: berth's additions to a daemon.json. A removal restores it byte for byte.
func TestDockerFiles(t *testing.T) {
	for _, c := range []struct {
		name, text string
		options    Options
		version    string
		want       string
	}{
		{"nothing in it", "", usual, "28.5.2", "{\n  \"runtimes\": {\n    \"berth\": {\n      \"path\": \"/usr/bin/berth-runtime\"\n    }\n  }\n}\n"},
		{"white space", " \n\t\n", usual, "28.5.2", "{\n  \"runtimes\": {\n    \"berth\": {\n      \"path\": \"/usr/bin/berth-runtime\"\n    }\n  }\n}\n"},
		{"minified", `{"log-driver":"local"}`, usual, "28.5.2", `{"log-driver":"local","runtimes":{"berth":` + ours + `}}`},
		{"default", `{"log-driver":"local"}`, withDefault(), "28.5.2", `{"log-driver":"local","runtimes":{"berth":` + ours + `},"default-runtime":"berth"}`},
		{"another default", `{"default-runtime":"crun"}`, withDefault(), "28.5.2", `{"default-runtime":"berth","runtimes":{"berth":` + ours + `}}`},
		{"CDI off", `{"features":{"cdi":false,"x":true}}`, usual, "28.5.2", `{"features":{"cdi":true,"x":true},"runtimes":{"berth":` + ours + `}}`},
		{"before CDI was on", `{"features":{"x":true}}`, usual, "27.0.1", `{"features":{"x":true,"cdi":true},"runtimes":{"berth":` + ours + `}}`},
		{"before there was CDI", `{"debug":true}`, usual, "20.10.24", `{"debug":true,"runtimes":{"berth":` + ours + `}}`},
		{
			"what NVIDIA's toolkit writes",
			"{\n    \"default-runtime\": \"nvidia\",\n    \"runtimes\": {\n        \"nvidia\": {\n            \"args\": [],\n            \"path\": \"nvidia-container-runtime\"\n        }\n    }\n}",
			usual, "28.5.2",
			"{\n    \"default-runtime\": \"nvidia\",\n    \"runtimes\": {\n        \"nvidia\": {\n            \"path\": \"/usr/bin/berth-runtime\"\n        },\n        \"berth\": {\n            \"path\": \"/usr/bin/berth-runtime\"\n        }\n    }\n}",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := machine{dockerConfigPath: c.text, unitFile: "[Service]\nExecStart=/usr/sbin/dockerd\n"}
			after, _ := before.set(t, "docker", c.version, c.options)
			if diff := cmp.Diff(c.want, after[dockerConfigPath]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if after[stubLink] != "-> /usr/bin/berth-hook" {
				t.Errorf("the stub is %q", after[stubLink])
			}
			back, p := after.unset(t, "docker")
			if diff := cmp.Diff(before, back); diff != "" || len(p.Notes) > 0 {
				t.Errorf("%v (-want +got):\n%s", p.Notes, diff)
			}
		})
	}
}

// TestDockerKeys: a removal keeps the admin's later changes and removes berth's keys.
func TestDockerKeys(t *testing.T) {
	for _, c := range []struct {
		name, before string
		options      Options
		change       func(string) string
		want         string
		note         string
	}{
		{"another key", `{"a":1}`, withDefault(), replaceOnce(`"a":1`, `"a":2,"b":3`), `{"a":2,"b":3}`, ""},
		{"another runtime", `{"a":1}`, usual, replaceOnce(`"runtimes":{`, `"runtimes":{"x":{},`), `{"a":1,"runtimes":{"x":{}}}`, ""},
		{"another default", `{"a":1}`, withDefault(), replaceOnce(`"berth"}`, `"crun"}`), `{"a":1,"default-runtime":"crun"}`, "default-runtime"},
		{"an older default comes back", `{"default-runtime":"crun"}`, withDefault(), replaceOnce(`,`, ` , `), `{"default-runtime":"crun"}`, ""},
		{"a runtime that berth replaced", `{"runtimes":{"nvidia":{"path":"n", "args":[]}}}`, usual, replaceOnce(`}}}`, `}},"a":1}`), `{"runtimes":{"nvidia":{"path":"n", "args":[]}},"a":1}`, ""},
		{"berth's own key gone", `{"a":1}`, usual, replaceOnce(`,"runtimes":{"berth":`+ours+`}`, ""), `{"a":1}`, ""},
		{"a file that was berth's", "", usual, replaceOnce("\n", ""), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := machine{"/etc/docker/x": ""}
			if c.before != "" {
				before[dockerConfigPath] = c.before
			}
			after, _ := before.set(t, "docker", "28.5.2", c.options)
			changed := c.change(after[dockerConfigPath])
			if changed == after[dockerConfigPath] {
				t.Fatalf("nothing was changed in %s", changed)
			}
			after[dockerConfigPath] = changed
			again, _ := after.set(t, "docker", "28.5.2", usual) // the record stays right
			if c.note != "" || c.name == "berth's own key gone" {
				again = after
			}
			back, p := again.unset(t, "docker")
			if back[dockerConfigPath] != c.want || !strings.Contains(noteText(p), c.note) {
				t.Errorf("got %q, want %q; notes %q", back[dockerConfigPath], c.want, p.Notes)
			}
		})
	}
}

func replaceOnce(from, to string) func(string) string {
	return func(s string) string { return strings.Replace(s, from, to, 1) }
}

// TestDockerSteps: a --default that was added by a later setup stays until a removal undoes both.
func TestDockerSteps(t *testing.T) {
	before := machine{dockerConfigPath: "{\n  \"debug\": true,\n  \"default-runtime\": \"runc\"\n}\n"}
	m, _ := before.set(t, "docker", "28.5.2", usual)
	m, p := m.set(t, "docker", "28.5.2", withDefault())
	if len(p.Changes) != 1 || p.Apply != "systemctl reload docker" {
		t.Errorf("%d changes; %s", len(p.Changes), p.Apply)
	}
	m, _ = m.set(t, "docker", "28.5.2", usual)
	if !strings.Contains(m[dockerConfigPath], `"default-runtime": "berth"`) {
		t.Errorf("got %s", m[dockerConfigPath])
	}
	moved := usual
	moved.Runtime = "/opt/berth-runtime"
	m, _ = m.set(t, "docker", "28.5.2", moved)
	back, _ := m.unset(t, "docker")
	if diff := cmp.Diff(before, back); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// By key as well, what was there before all of it counts.
	m[dockerConfigPath] = strings.Replace(m[dockerConfigPath], "true", "false", 1)
	before[dockerConfigPath] = strings.Replace(before[dockerConfigPath], "true", "false", 1)
	back, _ = m.unset(t, "docker")
	if diff := cmp.Diff(before, back); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDockerInterrupted: a setup that was killed at any step can be undone, and repeated.
func TestDockerInterrupted(t *testing.T) {
	before := machine{dockerConfigPath: `{"a":1}`, unitFile: "[Service]\n"}
	p, err := planDocker(before.host("28.5.2"), withDefault(), nil)
	if err != nil {
		t.Fatal(err)
	}
	done, _ := before.set(t, "docker", "28.5.2", withDefault())
	for n := range p.Changes {
		half := p
		half.Changes = p.Changes[:n]
		m := before.with(t, half)
		if back, _ := maps.Clone(m).unset(t, "docker"); !cmp.Equal(back, before) {
			t.Errorf("after %d steps: %s", n, cmp.Diff(before, back))
		}
		m, _ = m.set(t, "docker", "28.5.2", withDefault())
		if m[dockerConfigPath] != done[dockerConfigPath] || m[dockerDropIn] != done[dockerDropIn] {
			t.Errorf("after %d steps: %s", n, cmp.Diff(done, m))
		}
		if back, _ := m.unset(t, "docker"); !cmp.Equal(back, before) {
			t.Errorf("after %d steps, and the others: %s", n, cmp.Diff(before, back))
		}
	}
}

// TestDockerPath: the directory of the stub comes before the other directories of dockerd's PATH.
func TestDockerPath(t *testing.T) {
	const override = "/etc/systemd/system/docker.service.d/override.conf"
	for _, c := range []struct {
		name  string
		files machine
		path  string // systemd's
		want  string
		note  string
	}{
		{"systemd's", machine{unitFile: "[Service]\nExecStart=/usr/sbin/dockerd\n"}, "", defaultPath, ""},
		{"systemd's own", machine{unitFile: "[Service]\n"}, "/run/sw/bin", "/run/sw/bin", ""},
		{"the unit's", machine{unitFile: "[Service]\nEnvironment=\"PATH=/a:/b c\" X=1\n"}, "/x", "/a:/b c", ""},
		{"not another section's", machine{unitFile: "[Unit]\nEnvironment=PATH=/a\n[Service]\n"}, "", defaultPath, ""},
		{"not a comment's", machine{unitFile: "[Service]\n#Environment=PATH=/a\n; Environment=PATH=/b\n"}, "", defaultPath, ""},
		{"reset", machine{unitFile: "[Service]\nEnvironment=PATH=/a\n", "/run/systemd/system/docker.service.d/a.conf": "[Service]\nEnvironment=\n"}, "", defaultPath, ""},
		{"a drop-in's", machine{unitFile: "[Service]\nEnvironment=PATH=/a\n", "/usr/lib/systemd/system/docker.service.d/a.conf": "[Service]\nEnvironment=PATH=/b\n"}, "", "/b", ""},
		{"a masked drop-in's", machine{unitFile: "[Service]\n", "/usr/lib/systemd/system/docker.service.d/a.conf": "[Service]\nEnvironment=PATH=/b\n", "/etc/systemd/system/docker.service.d/a.conf": ""}, "", defaultPath, ""},
		{"a later drop-in's", machine{unitFile: "[Service]\n", override: "[Service]\nEnvironment=PATH=/b\n"}, "", "/b", override + " sets PATH after berth's"},
		{"an environment file's", machine{unitFile: "[Service]\nEnvironmentFile=-/etc/default/docker\n", "/etc/default/docker": "# PATH=/x\nPATH='/c:/d'\n"}, "", "/c:/d", "/etc/default/docker sets PATH after berth's"},
		{"with the stub already", machine{unitFile: "[Service]\nEnvironment=PATH=/a:/data/engines/docker\n"}, "", "/a", ""},
		{"no unit", machine{"/etc/docker/x": ""}, "", "", "there is no docker.service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := c.files.host("28.5.2")
			h.Path = c.path
			p, err := planDocker(h, usual, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := c.files.with(t, p)[dockerDropIn]
			want := ""
			if c.want != "" {
				want = "# Written by berth setup docker; berth setup docker --remove takes it away.\n[Service]\nEnvironment=\"PATH=/data/engines/docker:" + c.want + "\"\n"
			}
			if got != want || !strings.Contains(noteText(p), c.note) {
				t.Errorf("got %q, want %q; notes %q", got, want, p.Notes)
			}
		})
	}
}

// TestDockerRefuses: a configuration that berth doesn't understand is an error.
func TestDockerRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		files machine
		want  string
	}{
		{"a comment", machine{dockerConfigPath: "{\n  // x\n}"}, `/etc/docker/daemon.json: line 2, column 3: invalid character '/' looking for beginning of object key string`},
		{"a comment behind a link", machine{dockerConfigPath: "-> /srv/d.json", "/srv/d.json": "// x"}, `/srv/d.json: line 1, column 1: invalid character '/' looking for beginning of value`},
		{"a key twice", machine{dockerConfigPath: "{\"runtimes\":{},\n\"runtimes\":{}}"}, `/etc/docker/daemon.json: line 2, column 1: the key "runtimes" is there twice`},
		{"no object", machine{dockerConfigPath: `{"runtimes": "x"}`}, `/etc/docker/daemon.json: line 1, column 14: "runtimes" is no object`},
		{"a link to nowhere", machine{dockerConfigPath: "-> /srv/daemon.json"}, "read /etc/docker/daemon.json: it is a link to /srv/daemon.json: file does not exist"},
		{"a ring of links", machine{dockerConfigPath: "-> x", "/etc/docker/x": "-> daemon.json"}, "read /etc/docker/daemon.json: too many links"},
		{"a flag", machine{unitFile: "[Service]\nExecStart=/usr/sbin/dockerd -H fd:// --default-runtime=crun\n"}, "docker.service gives dockerd --default-runtime, which it then takes from no file: move that to /etc/docker/daemon.json"},
		{"a flag of a variable", machine{unitFile: "[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/dockerd $OPTS\n", "/etc/default/docker": "OPTS=\"--add-runtime x=/x\"\n"}, "docker.service gives dockerd --add-runtime, which it then takes from no file: move that to /etc/docker/daemon.json"},
		{"somebody else's drop-in", machine{unitFile: "[Service]\n", dockerDropIn: "[Service]\nX=1\n"}, dockerDropIn + " isn't berth's: move it away"},
		{"a file in the place of the stub", machine{stubLink: "x"}, stubLink + " has to be a link of berth's, and is a file: move it away"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := planDocker(c.files.host("28.5.2"), usual, nil); err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
	h := Host{FS: fstest.MapFS{}}
	if _, err := planDocker(h, usual, nil); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("without docker: %v", err)
	}
}

// TestDockerNotes: the notes about a version of docker, and the command that applies the change.
func TestDockerNotes(t *testing.T) {
	count := usual
	count.CountIndices = true
	for _, c := range []struct {
		name, text, version string
		options             Options
		apply, note         string
	}{
		{"the usual", "{}", "28.5.2", usual, "systemctl daemon-reload && systemctl restart docker", "ends its containers unless live-restore is true"},
		{"with live-restore", `{"live-restore":true}`, "28.5.2", usual, "systemctl daemon-reload && systemctl restart docker", ""},
		{"an old one", `{"live-restore":true}`, "20.10.24", usual, "systemctl daemon-reload && systemctl restart docker", "docker 20.10.24 knows no CDI devices"},
		{"a new one", `{"live-restore":true}`, "29.2.0", usual, "systemctl daemon-reload && systemctl restart docker", `set policy.nvidia_indices = "count"`},
		{"a new one, and it is set", `{"live-restore":true}`, "29.2.0", count, "systemctl daemon-reload && systemctl restart docker", ""},
		{"an unknown one", `{"live-restore":true}`, "", usual, "systemctl daemon-reload && systemctl restart docker", "dockerd's version isn't known"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, p := machine{dockerConfigPath: c.text, unitFile: "[Service]\n"}.set(t, "docker", c.version, c.options)
			if notes := noteText(p); p.Apply != c.apply || !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
				t.Errorf("%s; notes: %s", p.Apply, notes)
			}
		})
	}
}

// TestDockerLink: if daemon.json is a link, its target is edited.
func TestDockerLink(t *testing.T) {
	before := machine{dockerConfigPath: "-> ../../srv/docker.json", "/srv/docker.json": "-> real.json", "/srv/real.json": `{"a":1}`}
	after, p := before.set(t, "docker", "28.5.2", usual)
	if p.Changes[0].Path != "/srv/real.json" || after[dockerConfigPath] != before[dockerConfigPath] {
		t.Errorf("%+v", p.Changes)
	}
	if back, _ := after.unset(t, "docker"); !cmp.Equal(before, back) {
		t.Error(cmp.Diff(before, back))
	}
}

// TestDockerOtherFile: a file that dockerd's command line names is edited.
func TestDockerOtherFile(t *testing.T) {
	before := machine{"/srv/d.json": "{}", unitFile: "[Service]\nExecStart=/usr/bin/dockerd --config-file /srv/d.json\n"}
	if after, _ := before.set(t, "docker", "28.5.2", usual); after["/srv/d.json"] == "{}" || after[dockerConfigPath] != "" {
		t.Errorf("%v", after)
	}
}

// TestDockerConfig: a configuration of berth's other than the default one is passed to the runtime by
// a script.
func TestDockerConfig(t *testing.T) {
	o := usual
	o.Config = "/srv/berth.toml"
	m, _ := machine{dockerConfigPath: "{}"}.set(t, "docker", "28.5.2", o)
	const script = "/data/engines/docker/berth-runtime"
	if !strings.Contains(m[script], "BERTH_CONFIG='/srv/berth.toml' exec '/usr/bin/berth-runtime' \"$@\"\n") || !strings.Contains(m[dockerConfigPath], script) {
		t.Errorf("%v", m)
	}
	if back, _ := m.unset(t, "docker"); len(back) != 1 {
		t.Errorf("it leaves %v", back)
	}
}

// TestDockerRoundTrip: setup and removal leave any daemon.json with the same bytes.
func TestDockerRoundTrip(t *testing.T) {
	key := rapid.SampledFrom([]string{`"runtimes"`, `"features"`, `"default-runtime"`, `"nvidia"`, `"berth"`, `"cdi"`, `"path"`, `"a"`, `"\u0062"`, `"ü"`})
	space := rapid.SampledFrom([]string{"", " ", "\n", "\r\n\t", "\n    "})
	value := rapid.Custom(func(t *rapid.T) string { return object(t, key, space, 3) })
	rapid.Check(t, func(t *rapid.T) {
		before := machine{dockerConfigPath: space.Draw(t, "first") + value.Draw(t, "text") + space.Draw(t, "last"), unitFile: "[Service]\n"}
		p, err := planDocker(before.host("27.0"), withDefault(), nil)
		if err != nil {
			return // it says why
		}
		var config Change
		for _, c := range p.Changes {
			if c.Path == dockerConfigPath {
				config = c
			}
		}
		back, err := PlanRemoval(machine{dockerConfigPath: string(config.After.Data)}.host(""), p.Record)
		if err != nil || len(back.Changes) != 1 || string(back.Changes[0].After.Data) != before[dockerConfigPath] {
			t.Fatalf("%q became %q: %+v, %v", before[dockerConfigPath], config.After.Data, back, err)
		}
	})
}

func object(t *rapid.T, key, space *rapid.Generator[string], depth int) string {
	var members []string
	for range rapid.IntRange(0, 4).Draw(t, "members") {
		value := rapid.SampledFrom([]string{"1", `"x"`, "null", "true", "[1, {}]", "{}"}).Draw(t, "value")
		if depth > 0 && rapid.Bool().Draw(t, "inner") {
			value = object(t, key, space, depth-1)
		}
		members = append(members, space.Draw(t, "s")+key.Draw(t, "key")+space.Draw(t, "s")+":"+space.Draw(t, "s")+value+space.Draw(t, "s"))
	}
	return "{" + space.Draw(t, "s") + strings.Join(members, ",") + "}"
}
