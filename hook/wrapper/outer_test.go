package wrapper

import (
	"os"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/isolation/ledger"
)

// able is original with the right to take off its device rules.
const able = `{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{"env":["A=1"],"capabilities":{"bounding":["CAP_SYS_ADMIN"]}},` +
	`"linux":{"cgroupsPath":"/engine/c1"},"annotations":{"berth.gpus":"2"}}`

const enclosed = "enclose /engine/outer for /engine/outer/c1; "

// TestOuterCgroup: a container that could lift its own rules is put into an outer cgroup, which its
// delete removes.
func TestOuterCgroup(t *testing.T) {
	tests := []struct {
		name, config, create, calls, deleted string
		concerned                            bool
	}{
		{
			"with a lease", able, createLine,
			"acquire 2 for c1; prepare 00000000000a rootfs; " + enclosed + "tell prepared 00000000000a a note; ",
			"; release 00000000000a; unclose /engine/outer", false,
		},
		{
			"guarded", strings.Replace(able, `"berth.gpus":"2"`, "", 1), createLine,
			"guard rootfs; " + enclosed + "tell guarded  a note; ", "; unclose /engine/outer", true,
		},
		{
			"not able", original, createLine,
			"acquire 2 for c1; prepare 00000000000a rootfs; tell prepared 00000000000a a note; ", "; release 00000000000a", false,
		},
		{
			"of systemd", strings.Replace(able, "/engine/c1", "system.slice:docker:c1", 1), "--systemd-cgroup " + createLine,
			"acquire 2 for c1; prepare 00000000000a rootfs; enclose /system.slice/system-outer.slice for system-outer.slice:docker:c1; tell prepared 00000000000a a note; ",
			"; release 00000000000a; unclose /system.slice/system-outer.slice", false,
		},
		{
			"of systemd, without a path", strings.Replace(able, "/engine/c1", "", 1), "--systemd-cgroup " + createLine,
			"acquire 2 for c1; prepare 00000000000a rootfs; enclose /system.slice/system-outer.slice for system-outer.slice:runc:c1; tell prepared 00000000000a a note; ",
			"; release 00000000000a; unclose /system.slice/system-outer.slice", false,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := world(t, tt.config)
			s.Concerned = tt.concerned
			r := s.run(t, tt.create)
			want(t, "calls", s.calls(t), tt.calls+"runtime "+tt.create)
			checkSamePID(t, s, r)
			_, outer, _ := strings.Cut(tt.calls, "enclose ")
			outer, _, _ = strings.Cut(outer, " for ")
			if got := strings.Contains(s.get(t, "seen.json"), `"dev.berth.cgroup":"`+outer+`"`); got != (outer != "") {
				t.Errorf("the spec remembers outer cgroup %q: %v", outer, got)
			}
			s.put(t, "state/c1/state.json", `{"config":{"labels":["bundle=`+s.path("bundle")+`"]}}`)
			s.run(t, deleteLine)
			want(t, "calls", s.calls(t), "runtime "+deleteLine+tt.deleted)
		})
	}
}

// TestOuterRefusesFileSystemEvents: the filter of a container in an outer cgroup refuses fanotify_init, by which
// CAP_SYS_ADMIN would leave the cgroup; that of others stays as it is.
func TestOuterRefusesFileSystemEvents(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		refused      bool
	}{{"administrator", able, true}, {"other", original, false}} {
		t.Run(tt.name, func(t *testing.T) {
			const filter = `"linux":{"seccomp":{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"},` +
				`{"names":["bpf","fanotify_init","mount"],"action":"SCMP_ACT_ALLOW"}]},`
			s := world(t, strings.Replace(tt.config, `"linux":{`, filter, 1))
			checkSamePID(t, s, s.run(t, createLine))
			seen := s.get(t, "seen.json")
			if got := !strings.Contains(seen, "fanotify_init"); got != tt.refused || !strings.Contains(seen, `"bpf"`) || !strings.Contains(seen, `"mount"`) {
				t.Errorf("seen %s", seen)
			}
		})
	}
}

// TestForgedOuterCgroup: an annotation of the spec that names an outer cgroup is ignored.
func TestForgedOuterCgroup(t *testing.T) {
	s := world(t, strings.Replace(original, `"berth.gpus"`, `"dev.berth.cgroup":"/engine","berth.gpus"`, 1))
	s.run(t, createLine)
	if strings.Contains(s.get(t, "seen.json"), "dev.berth.cgroup") {
		t.Errorf("seen %s", s.get(t, "seen.json"))
	}
	s.calls(t)
	s.put(t, "state/c1/state.json", `{"config":{"labels":["bundle=`+s.path("bundle")+`"]}}`)
	s.run(t, deleteLine)
	want(t, "calls", s.calls(t), "runtime "+deleteLine+"; release 00000000000a")
}

func TestUpdate(t *testing.T) {
	const changes = `{"memory":{"limit":7},"devices":[{"allow":true,"access":"rwm"}],"Devices":[],"DEVICES":1,"devices\u0000x":[]}`
	const kept = `{"memory":{"limit":7}}`
	tests := []struct{ name, line, input, given, seen string }{
		{"file", "update --resources changes.json c1", changes, "update --resources FD c1", kept},
		{"file in one word", "update --resources=changes.json c1", changes, "update --resources=FD c1", kept},
		{"short", "update -r changes.json c1", changes, "update -r FD c1", kept},
		{"short in one word", "update -rchanges.json c1", changes, "update -rFD c1", kept},
		{"short with equals sign", "--log log update -r=changes.json c1", changes, "--log log update -r=FD c1", kept},
		{"the last one counts", "update -r other.json -r changes.json c1", changes, "update -r other.json -r FD c1", kept},
		{"a beginning of the flag, which crun takes", "update --reso changes.json c1", changes, "update --reso FD c1", kept},
		{"a beginning in one word", "update --res=changes.json c1", changes, "update --res=FD c1", kept},
		{"standard input", "update --memory 7 --resources - c1", changes, "update --memory 7 --resources FD c1", kept},
		{"no devices", "update --resources changes.json c1", `{"cpu":{"shares":2}}`, "update --resources FD c1", `{"cpu":{"shares":2}}`},
		{"no resources", "update --memory 7 c1", "", "update --memory 7 c1", ""},
		{"another container", "update --resources changes.json c2", changes, "update --resources FD c2", kept},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := made(t)
			s.put(t, "changes.json", tt.input)
			s.put(t, "runtime", "#!/bin/sh\ncd "+s.Dir+"\necho \"runtime $*\" >>calls\n"+
				`for a; do case $a in *fd/*) cat "/${a#*/}";; *changes.json) cat "$a";; esac; done >seen`)
			cmd := s.command(t, tt.line)
			cmd.Stdin = strings.NewReader(tt.input)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			calls := s.calls(t)
			for _, word := range strings.Fields(calls) {
				if i := strings.Index(word, "/proc/self/fd/"); i >= 0 {
					calls = strings.Replace(calls, word[i:], "FD", 1)
				}
			}
			want(t, "calls", calls, "runtime "+tt.given)
			want(t, "seen", s.get(t, "seen"), tt.seen)
		})
	}
}

func TestUpdateRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "devices", "a list": "[]", "too much": `{"a":"` + strings.Repeat("a", resourcesLimit) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := made(t)
			s.put(t, "changes.json", text)
			r := s.run(t, "update --resources changes.json c1")
			want(t, "calls", s.calls(t), "")
			if r.code != 1 || !strings.Contains(r.stderr, "update container c1: resources: ") || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
	s := made(t)
	if err := os.RemoveAll(s.path("changes.json")); err != nil {
		t.Fatal(err)
	}
	if r := s.run(t, "update --resources changes.json c1"); r.code != 1 || !strings.Contains(r.stderr, "changes.json") {
		t.Errorf("no file: %+v", r)
	}
}

// TestCheckpointAndRestoreOfLease: a container with a lease is neither checkpointed nor restored,
// because a checkpoint has no state of devices.
func TestCheckpointAndRestoreOfLease(t *testing.T) {
	t.Run("checkpoint", func(t *testing.T) {
		s := made(t)
		r := s.run(t, "checkpoint --image-path image --leave-running c1")
		want(t, "calls", s.calls(t), "")
		if r.code != 1 || !strings.Contains(r.stderr, "checkpoint container c1: it holds lease 00000000000a") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("checkpoint of another container", func(t *testing.T) {
		s := made(t)
		const line = "checkpoint --image-path image c2"
		if r := s.run(t, line); r.code != 0 {
			t.Errorf("%+v", r)
		}
		want(t, "calls", s.calls(t), "runtime "+line)
	})
	t.Run("restore", func(t *testing.T) {
		s := world(t, original)
		r := s.run(t, "restore --image-path image --bundle bundle c1")
		want(t, "calls", s.calls(t), "")
		if r.code != 1 || !strings.Contains(r.stderr, "restore container c1: it asks for devices") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("restore without devices", func(t *testing.T) {
		s := world(t, nothing)
		const line = "restore --image-path image --bundle bundle c1"
		if r := s.run(t, line); r.code != 0 {
			t.Errorf("%+v", r)
		}
		want(t, "calls", s.calls(t), "runtime "+line)
	})
}

// TestCgroupOfAnotherLease: a cgroup of another container's lease is refused, also for a container
// without a request.
func TestCgroupOfAnotherLease(t *testing.T) {
	at := func(config, path string) string { return strings.Replace(config, "/engine/c1", path, 1) }
	plain := strings.Replace(original, `"berth.gpus":"2"`, "", 1)
	for _, tt := range []struct {
		name, config string
		owner        ledger.Owner
		dead         bool
		refused      bool
		configError  string
	}{
		{name: "the same, with a broken configuration", config: plain, owner: ledger.Owner{Container: "c9"}, refused: true, configError: "unknown key"},
		{"the same", plain, ledger.Owner{Container: "c9"}, false, true, ""},
		{"within", at(plain, "/engine/c1/d"), ledger.Owner{Container: "c9"}, false, true, ""},
		{"around", at(plain, "/engine"), ledger.Owner{Container: "c9"}, false, true, ""},
		{"the same id of another runtime", plain, ledger.Owner{Container: "c1", RuntimeRoot: "/else"}, false, true, ""},
		{"beside", at(plain, "/engine/c12"), ledger.Owner{Container: "c9"}, false, false, ""},
		{"of a container that is gone", plain, ledger.Owner{Container: "c9"}, true, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := world(t, tt.config)
			s.RuntimesErr = tt.configError
			tt.owner.Cgroup = "/engine/c1"
			tt.owner.Process.PID = os.Getpid()
			if tt.dead {
				tt.owner.Process.PID = 1 << 30
			}
			if err := s.save(ledger.Status{Lease: ledger.Lease{ID: "00000000000b", State: ledger.Bound, Owner: tt.owner}}); err != nil {
				t.Fatal(err)
			}
			r := s.run(t, createLine)
			refused := r.code == 1 && strings.Contains(r.stderr, "cgroup /engine/c1 belongs to container "+tt.owner.Container+", which holds lease 00000000000b") && strings.Count(r.stderr, "\n") == 1
			if refused != tt.refused {
				t.Errorf("%+v", r)
			}
			if ran := strings.Contains(s.calls(t), "runtime "); ran == tt.refused {
				t.Errorf("the runtime ran: %v", ran)
			}
		})
	}
}

// TestExecPrivileged: an exec of a process that could lift the device rules is refused in a container
// with a lease.
func TestExecPrivileged(t *testing.T) {
	all, few := `{"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_ADMIN"]}}`, `{"args":["sh"],"capabilities":{"bounding":["CAP_CHOWN"]}}`
	for _, tt := range []struct {
		name, process, line string
		refused             bool
	}{
		{"docker exec --privileged", all, "exec --process process.json --pid-file p c1", true},
		{"docker exec", few, "exec --process process.json --pid-file p c1", false},
		{"without capabilities", `{"args":["sh"]}`, "exec -p process.json c1", false},
		{"no JSON", `{`, "exec -p process.json c1", true},
		{"a large environment", `{"args":["sh"],"env":["A=` + strings.Repeat("a", 2<<20) + `"],"capabilities":{"bounding":["CAP_SYS_ADMIN"]}}`, "exec -p process.json c1", true},
		{"no regular file", few, "exec -p . c1", true},
		{"no file", few, "exec -p none c1", false},
		{"crun's terminal with a value", "", "exec -tp --cap=CAP_SYS_ADMIN c1 sh", true},
		{"a terminal", "", "exec -t c1 sh --cap CAP_SYS_ADMIN", false},
		{"abbreviated", "", "exec --ca=CAP_SYS_ADMIN c1 sh", true},
		{"abbreviated process", all, "exec --proc process.json c1", true},
		{"by hand", "", "exec --cap CAP_SYS_ADMIN c1 sh", true},
		{"by hand, lower case", "", "exec -c cap_sys_admin c1 sh", true},
		{"by hand, as libcap reads it", "", "exec --cap 21 c1 sh", true},
		{"a name with an end inside", `{"capabilities":{"bounding":["CAP_SYS_ADMIN\\u0000x"]}}`, "exec -p process.json c1", true},
		{"a capability that lifts nothing", "", "exec --cap CAP_NET_RAW c1 sh", false},
		{"the command's own words", "", "exec c1 sh --cap CAP_SYS_ADMIN", false},
		{"a container without a lease", all, "exec --process process.json c2", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := made(t)
			s.put(t, "bundle/config.json", strings.Replace(able, "CAP_SYS_ADMIN", "CAP_CHOWN", 1))
			if tt.process != "" {
				s.put(t, "process.json", tt.process)
			}
			r := s.run(t, tt.line)
			if !tt.refused {
				want(t, "calls", s.calls(t), "runtime "+tt.line)
				return
			}
			want(t, "calls", s.calls(t), "")
			if r.code != 1 || !strings.Contains(r.stderr, "exec in container c1: with CAP_SYS_ADMIN the process could open devices beyond lease 00000000000a") || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
	t.Run("the container has it itself", func(t *testing.T) {
		s := made(t)
		s.put(t, "bundle/config.json", able)
		const line = "exec --cap CAP_SYS_ADMIN c1 sh"
		s.run(t, line)
		want(t, "calls", s.calls(t), "runtime "+line)
	})
	t.Run("in an outer cgroup", func(t *testing.T) {
		s := world(t, able)
		s.run(t, createLine)
		s.calls(t)
		s.put(t, "state/c1/state.json", `{"config":{"labels":["bundle=`+s.path("bundle")+`"]}}`)
		const line = "exec --cap CAP_SYS_ADMIN c1 sh"
		s.run(t, line)
		want(t, "calls", s.calls(t), "runtime "+line)
	})
}

// TestRuntimeAnnotations: annotations that an image can write under podman don't reach crun, and
// no container's processes leave its cgroup, whether it asks for devices or not.
func TestRuntimeAnnotations(t *testing.T) {
	for _, tt := range []struct {
		name, config, annotations string
		refused                   bool
	}{
		{"podman", nothing, `"io.container.manager":"libpod","run.oci.delegate-cgroup":"../x","run.oci.handler":"krun","run.oci.seccomp_bpf_data":"A"`, false},
		{"another engine", original, `"run.oci.delegate-cgroup":"../x"`, true},
		{"another engine, nothing asked", nothing, `"run.oci.delegate-cgroup":"/x"`, true},
		{"another engine, below", nothing, `"run.oci.delegate-cgroup":"x"`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := strings.Replace(tt.config, `"berth.gpus"`, tt.annotations+`,"berth.gpus"`, 1)
			if tt.config == nothing {
				config = strings.Replace(tt.config, `"process"`, `"annotations":{`+tt.annotations+`},"process"`, 1)
			}
			s := world(t, config)
			r := s.run(t, createLine)
			if refused := strings.Contains(r.stderr, "leads out of the container's cgroup"); refused != tt.refused || refused == (r.code == 0) {
				t.Errorf("%+v", r)
			}
			if strings.Contains(tt.annotations, "libpod") && strings.Contains(s.get(t, "seen.json"), "run.oci.") {
				t.Errorf("crun sees %s", s.get(t, "seen.json"))
			}
		})
	}
}
