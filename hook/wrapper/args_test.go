package wrapper

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseArgs(t *testing.T) {
	compare := cmp.AllowUnexported(call{})
	tests := []struct {
		name, line string
		want       call
	}{
		{
			"containerd's shim",
			"--root /run/containerd/runc/default --log /b/log.json --log-format json --systemd-cgroup create --bundle /b --pid-file /b/init.pid c1",
			call{
				verb: "create", id: "c1", words: []string{"c1"}, root: "/run/containerd/runc/default", log: "/b/log.json",
				logFormat: "json", systemd: true, bundle: "/b", pidFile: "/b/init.pid",
			},
		},
		{
			"docker's shim, with a terminal",
			"--root /var/run/docker/runtime-runc/moby --log /b/log.json --log-format json create --bundle /b --pid-file /b/init.pid --console-socket /tmp/pty.sock c1",
			call{
				verb: "create", id: "c1", words: []string{"c1"}, root: "/var/run/docker/runtime-runc/moby", log: "/b/log.json",
				logFormat: "json", bundle: "/b", pidFile: "/b/init.pid",
			},
		},
		{
			"conmon",
			"--log-format=json --log=/b/oci-log --systemd-cgroup create --bundle /u --pid-file /u/pidfile c1",
			call{verb: "create", id: "c1", words: []string{"c1"}, log: "/b/oci-log", logFormat: "json", systemd: true, bundle: "/u", pidFile: "/u/pidfile"},
		},
		{
			"buildkit", "--log /l --log-format json run --bundle /x/executor/abc --keep abc",
			call{verb: "run", id: "abc", words: []string{"abc"}, log: "/l", logFormat: "json", bundle: "/x/executor/abc"},
		},
		{
			"shim's delete", "--root /r --log /l --log-format json delete --force c1",
			call{verb: "delete", id: "c1", words: []string{"c1"}, root: "/r", log: "/l", logFormat: "json"},
		},
		{"short flags", "run -d -b /b c1", call{verb: "run", id: "c1", words: []string{"c1"}, bundle: "/b"}},
		{"short flags in one", "run -db /b c1", call{verb: "run", id: "c1", words: []string{"c1"}, bundle: "/b"}},
		{"short flag with its value", "run -b/b c1", call{verb: "run", id: "c1", words: []string{"c1"}, bundle: "/b"}},
		{"short flag with equals sign", "run -b=/b c1", call{verb: "run", id: "c1", words: []string{"c1"}, bundle: "/b"}},
		{"long flags with one dash", "-root /r create -bundle /b c1", call{verb: "create", id: "c1", words: []string{"c1"}, root: "/r", bundle: "/b"}},
		{
			"crun's config", "create -f /x/my.json --bundle=/b c1",
			call{verb: "create", id: "c1", words: []string{"c1"}, config: "/x/my.json", bundle: "/b"},
		},
		{"force has no value", "delete -f c1", call{verb: "delete", id: "c1", words: []string{"c1"}}},
		{"id before the flags", "create c1 --bundle /b", call{verb: "create", id: "c1", words: []string{"c1"}, bundle: "/b"}},
		{"global flag after the verb", "create --root /r --bundle /b c1", call{verb: "create", id: "c1", words: []string{"c1"}, root: "/r", bundle: "/b"}},
		{"a value that is a verb", "--log delete --root run create c1", call{verb: "create", id: "c1", words: []string{"c1"}, log: "delete", root: "run"}},
		{"an unknown flag with a value", "--new thing create --newer other c1", call{verb: "create", id: "c1", words: []string{"other", "c1"}}},
		{"an unknown flag after the id", "create c1 --newer other", call{verb: "create", id: "c1", words: []string{"c1", "other"}}},
		{"an unknown flag without a value", "--new create --newer c1", call{verb: "create", id: "c1", words: []string{"c1"}}},
		{"an unknown flag with its value inside", "--new=thing create --newer=other c1", call{verb: "create", id: "c1", words: []string{"c1"}}},
		{"an unknown short flag", "create -x c1", call{verb: "create", id: "c1", words: []string{"c1"}}},
		{"end of flags", "create --bundle /b -- --help", call{verb: "create", id: "--help", words: []string{"--help"}, bundle: "/b"}},
		{"cgroup manager", "--cgroup-manager systemd start c1", call{verb: "start", id: "c1", words: []string{"c1"}, systemd: true}},
		{"no cgroup", "--cgroup-manager=disabled start c1", call{verb: "start", id: "c1", words: []string{"c1"}, noCgroup: true}},
		{"no cgroup, abbreviated", "--cgroup-man=disabled start c1", call{verb: "start", id: "c1", words: []string{"c1"}, noCgroup: true}},
		{"no cgroup, abbreviated, in two words", "--c disabled start c1", call{verb: "start", id: "c1", words: []string{"c1"}, noCgroup: true}},
		{"bundle, abbreviated", "create --bun /b --conf=c.json c1", call{verb: "create", id: "c1", words: []string{"c1"}, bundle: "/b", config: "c.json"}},
		{"an abbreviation of several flags", "--ro /r start c1", call{verb: "start", id: "c1", words: []string{"c1"}}},
		{"the last manager counts", "--cgroup-manager disabled --cgroup-manager cgroupfs start c1", call{verb: "start", id: "c1", words: []string{"c1"}}},
		{"no systemd after all", "--systemd-cgroup=false start c1", call{verb: "start", id: "c1", words: []string{"c1"}}},
		{"unknown verb", "frobnicate delete c1", call{opaque: true}},
		{"nothing", "", call{}},
		{"version", "--version", call{opaque: true}},
		{"help of a verb", "create --help --bundle /b c1", call{verb: "create", opaque: true}},
		{"several containers", "delete --force --regex c.*", call{verb: "delete", opaque: true}},
		{"several containers, short", "delete -fr c.*", call{verb: "delete", opaque: true}},
		{"a value is missing", "create c1 --bundle", call{verb: "create", id: "c1", words: []string{"c1"}, opaque: true}},
		{"features", "features", call{verb: "features"}},
		{"exec's command looks like flags", "exec c1 sh -c exit --cap x", call{verb: "exec", id: "c1", words: []string{"c1"}}},
		{
			"docker's exec", "--root /r exec --process /p --console-socket /s --detach --pid-file /pid c1",
			call{verb: "exec", id: "c1", words: []string{"c1"}, root: "/r", process: "/p", pidFile: "/pid"},
		},
		{
			"exec by hand", "exec -t -u 0:0 --cwd / -e A=B -g 5 --cap CAP_A -c CAP_B c1 sh",
			call{verb: "exec", id: "c1", words: []string{"c1"}, capabilities: []string{"CAP_A", "CAP_B"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parseArgs(append([]string{"berth-runtime"}, strings.Fields(tt.line)...)), compare); diff != "" {
				t.Error(diff)
			}
		})
	}
	if diff := cmp.Diff(call{}, parseArgs(nil), compare); diff != "" {
		t.Error(diff)
	}
}

// Whatever the words, parse ends; and flags with values before a create don't
// hide it.
func FuzzParse(f *testing.F) {
	f.Add("--root /r create --bundle /b c1")
	f.Add("-\x00- -b -- -")
	f.Fuzz(func(t *testing.T, line string) {
		parseArgs(strings.Split(line, " "))
		words := append([]string{"x", "--log=" + line, "--root", line, "create", "--pid-file", line, "-b", line}, "c1")
		if c := parseArgs(words); c.verb != "create" || c.id != "c1" || c.root != line || (c.bundle != line && line != "") {
			t.Errorf("%q: %+v", words, c)
		}
	})
}
