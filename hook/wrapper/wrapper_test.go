package wrapper

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/isolation/ledger"
)

const (
	createLine = "--log log --log-format json create --bundle bundle --pid-file pidfile c1"
	deleteLine = "--log log --log-format json delete --force c1"
	nothing    = `{"ociVersion":"1.0.2", "root":{"path":"rootfs"},"process":{"env":["A=1"]}}`
)

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// checkSamePID checks that the runtime ran with the wrapper's pid.
func checkSamePID(t *testing.T, s *setup, r result) {
	t.Helper()
	want(t, "pid", strings.TrimSpace(s.get(t, "pid")), strconv.Itoa(r.pid))
}

func TestCreateWithRequest(t *testing.T) {
	s := world(t, original)
	r := s.run(t, createLine)
	want(t, "calls", s.calls(t), "acquire 2 for c1; prepare 00000000000a rootfs; tell prepared 00000000000a a note; runtime "+createLine)
	checkSamePID(t, s, r)
	want(t, "kept", s.get(t, "bundle/config.json.berth"), original)
	if r.code != 0 || r.stderr != "" || !strings.Contains(s.get(t, "seen.json"), `"PREPARED=1"`) {
		t.Errorf("%+v, seen %s", r, s.get(t, "seen.json"))
	}
	var node fakeNode
	node.setup = *s
	leases, err := node.Leases()
	if err != nil {
		t.Fatal(err)
	}
	if leases[0].Owner.Process.PID != r.pid {
		t.Errorf("the lease's process is %d, want %d", leases[0].Owner.Process.PID, r.pid)
	}
	got := leases[0].Owner
	got.Process = ledger.Process{}
	want := ledger.Owner{
		EntryPoint: "runtime", Container: "c1", Bundle: s.path("bundle"), UID: os.Getuid(),
		PIDFile: s.path("pidfile"), Cgroup: "/engine/c1", RuntimeRoot: s.path("state"), Runtime: "runc",
	}
	if got != want {
		t.Errorf("owner\n got %+v\nwant %+v", got, want)
	}
}

func TestCreateWithoutRequest(t *testing.T) {
	s := world(t, nothing)
	before, err := os.Stat(s.path("bundle/config.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := s.run(t, createLine)
	want(t, "calls", s.calls(t), "runtime "+createLine)
	checkSamePID(t, s, r)
	want(t, "seen", s.get(t, "seen.json"), nothing)
	if after, err := os.Stat(s.path("bundle/config.json")); err != nil || !os.SameFile(before, after) {
		t.Errorf("config.json is another file: %v", err)
	}
}

func TestCreateGuarded(t *testing.T) {
	s := world(t, nothing)
	s.Concerned = true
	s.run(t, createLine)
	want(t, "calls", s.calls(t), "guard rootfs; tell guarded  a note; runtime "+createLine)
	if !strings.Contains(s.get(t, "seen.json"), "PREPARED=1") {
		t.Errorf("seen %s", s.get(t, "seen.json"))
	}
}

// TestCreateFails: a create that fails before the exec leaves no lease and the bundle as it was.
func TestCreateFails(t *testing.T) {
	const taken = "acquire 2 for c1; prepare 00000000000a rootfs; release 00000000000a"
	const told = "acquire 2 for c1; prepare 00000000000a rootfs; tell prepared 00000000000a a note; release 00000000000a"
	in := func(cgroup string) string { return strings.Replace(original, "/engine/c1", cgroup, 1) }
	keep := func(*testing.T, *setup) {}
	tests := []struct {
		name   string
		config string
		spoil  func(t *testing.T, s *setup)
		calls  string
		says   string
	}{
		{"node", original, func(_ *testing.T, s *setup) { s.NodeErr = "no node" }, "", "no node"},
		{"busy", original, func(_ *testing.T, s *setup) { s.AcquireErr = "2: 0 of 8 free" }, "acquire 2 for c1", "2: 0 of 8 free"},
		{"prepare", original, func(_ *testing.T, s *setup) { s.PrepareErr = "no such file or directory" }, taken, "it does not exist"},
		{"exec", original, func(t *testing.T, s *setup) { s.put(t, "runtime", "\x7fELF") }, told, "execute OCI runtime"},
		{
			"outer cgroup", able, func(_ *testing.T, s *setup) { s.EncloseErr = "no program" },
			"acquire 2 for c1; prepare 00000000000a rootfs; enclose /engine/outer for /engine/outer/c1; unclose /engine/outer; release 00000000000a", "no program",
		},
		{"exec after a guard", nothing, func(t *testing.T, s *setup) {
			s.Concerned = true
			s.put(t, "runtime", "\x7fELF")
		}, "guard rootfs; tell guarded  a note", "execute OCI runtime"},
		{"no root", original, func(t *testing.T, s *setup) {
			if err := os.Remove(s.path("bundle/rootfs")); err != nil {
				t.Fatal(err)
			}
		}, "acquire 2 for c1; release 00000000000a", "root file system bundle/rootfs is missing"},
		{"request", strings.Replace(original, `"2"`, `"!"`, 1), func(*testing.T, *setup) {}, "", "annotation berth.gpus"},
		{"version", `{"ociVersion":"3.0"}`, func(*testing.T, *setup) {}, "", `OCI version "3.0" is unknown: 1.x is supported`},
		{"cgroup outside", in("/../c1"), keep, "", `linux.cgroupsPath: not a cgroup path: "/../c1"`},
		{"cgroup that climbs", in("/engine/../c1"), keep, "", `linux.cgroupsPath: not a cgroup path: "/engine/../c1"`},
		{"relative cgroup that climbs", in("../c1"), keep, "", `linux.cgroupsPath: not a cgroup path: `},
		{"root cgroup", in("/"), keep, "", `linux.cgroupsPath: "/" is the root cgroup`},
		{"root cgroup in other words", in("//./"), keep, "", `linux.cgroupsPath: "//./" is the root cgroup`},
		{"no cgroups", original, func(_ *testing.T, s *setup) { s.Cgroup = s.path("cgroup") }, "", "no cgroup file system"},
		{"runtime is the wrapper", original, func(_ *testing.T, s *setup) { s.Runtime = os.Args[0] }, "", "is berth's own wrapper"},
		{"runtime is missing", original, func(_ *testing.T, s *setup) { s.Runtime = "/none/runc" }, "", "/none/runc"},
		{"configuration", original, func(_ *testing.T, s *setup) { s.RuntimesErr = "unknown key" }, "", "unknown key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := world(t, tt.config)
			tt.spoil(t, s)
			r := s.run(t, createLine)
			want(t, "calls", s.calls(t), tt.calls)
			want(t, "config.json", s.get(t, "bundle/config.json"), tt.config)
			if s.has("bundle/config.json.berth") || s.has("bundle/config.json.berth-new") || s.has("lease.json") {
				t.Error("something is left behind")
			}
			if r.code != 1 || !strings.Contains(r.stderr, tt.says) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("%+v, want %q", r, tt.says)
			}
			if log := s.get(t, "log"); !strings.Contains(log, `"level":"error"`) || strings.Count(log, "\n") != 1 {
				t.Errorf("log: %s", log)
			}
		})
	}
}

func TestMissingBundle(t *testing.T) {
	s := world(t, original)
	r := s.run(t, "create --bundle none c1")
	want(t, "stderr", r.stderr, "berth: open bundle none: there is no such directory\n")
	if err := os.Remove(s.path("bundle/config.json")); err != nil {
		t.Fatal(err)
	}
	r = s.run(t, createLine)
	want(t, "stderr", r.stderr, "berth: read bundle: bundle/config.json is missing\n")
}

// TestCgroupWithoutRequest: a container without a request can have any cgroup.
func TestCgroupWithoutRequest(t *testing.T) {
	for _, path := range []string{"/", "/../c1", "../c1"} {
		text := strings.Replace(nothing, `"process"`, `"linux":{"cgroupsPath":"`+path+`"},"process"`, 1)
		s := world(t, text)
		s.Cgroup = s.path("cgroup")
		s.run(t, createLine)
		want(t, "calls", s.calls(t), "runtime "+createLine)
		want(t, "seen", s.get(t, "seen.json"), text)
	}
}

// TestNoCgroups: without a cgroup there are no device rules, so a request is refused.
func TestNoCgroups(t *testing.T) {
	const ruled = `{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{},"linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`
	const refused = "berth: --cgroup-manager=disabled gives container c1 no cgroup"
	tests := []struct {
		name, config string
		guarded      bool
		flag         string
		calls        string
	}{
		{"asking", original, false, "--cgroup-manager=disabled", ""},
		{"asking, in two words", original, false, "--cgroup-manager disabled", ""},
		{"asking, abbreviated", original, false, "--cgroup-man=disabled", ""},
		{"asking, with rules", strings.Replace(ruled, `"root"`, `"annotations":{"berth.gpus":"2"},"root"`, 1), true, "--cgroup-manager=disabled", ""},
		{"guarded, with rules", ruled, true, "--cgroup-manager=disabled", ""},
		{"not guarded", ruled, false, "--cgroup-manager=disabled", "runtime LINE"},
		{"guarded, another manager", ruled, true, "--cgroup-manager=cgroupfs", "runtime LINE"},
	}
	for _, tt := range tests {
		for _, verb := range []string{"create", "run", "restore"} {
			t.Run(tt.name+" "+verb, func(t *testing.T) {
				s := world(t, tt.config)
				s.Guarded = tt.guarded
				line := tt.flag + " " + verb + " --bundle bundle c1"
				r := s.run(t, line)
				want(t, "calls", s.calls(t), strings.ReplaceAll(tt.calls, "LINE", line))
				want(t, "config.json", s.get(t, "bundle/config.json"), tt.config)
				refusal := r.code == 1 && strings.HasPrefix(r.stderr, refused) && strings.Count(r.stderr, "\n") == 1
				if refusal != (tt.calls == "") {
					t.Errorf("%+v", r)
				}
			})
		}
	}
}

// TestOtherVerbs: other verbs need only a runtime, even if configuration and ledger are broken.
func TestOtherVerbs(t *testing.T) {
	for _, line := range []string{
		"", "--version", "features", "state c1", "--root r kill c1 KILL", "frobnicate c1",
		"create --help", "create", "list --format json", "exec c1 sh",
	} {
		t.Run(line, func(t *testing.T) {
			s := world(t, "{")
			s.NodeErr, s.RuntimesErr = "no node", "no configuration"
			s.put(t, "exit", "3")
			r := s.run(t, line)
			want(t, "calls", s.calls(t), strings.TrimSpace("runtime "+line))
			checkSamePID(t, s, r)
			if r.code != 3 || r.stderr != "" {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestBundleInUse(t *testing.T) {
	s := made(t)
	rewritten := s.get(t, "bundle/config.json")
	r := s.run(t, strings.Replace(createLine, "c1", "c2", 1))
	want(t, "calls", s.calls(t), "")
	want(t, "config.json", s.get(t, "bundle/config.json"), rewritten)
	if !strings.Contains(r.stderr, "is in use by container c1 (lease 00000000000a)") {
		t.Errorf("%+v", r)
	}
	// Its process has gone, and so has its container, without a delete.
	if err := os.RemoveAll(s.path("state/c1")); err != nil {
		t.Fatal(err)
	}
	s.run(t, strings.Replace(createLine, "c1", "c2", 1))
	want(t, "calls", s.calls(t), "acquire 2 for c2; prepare 00000000000a rootfs; tell prepared 00000000000a a note; runtime "+strings.Replace(createLine, "c1", "c2", 1))
	want(t, "PREPARED", strconv.Itoa(strings.Count(s.get(t, "seen.json"), "PREPARED=1")), "1")
}

func TestForgedAnnotation(t *testing.T) {
	s := world(t, strings.Replace(original, `"2"`, `"2","dev.berth.lease":"x","dev.berth.new":"y"`, 1))
	s.run(t, createLine)
	seen := s.get(t, "seen.json")
	if strings.Contains(seen, "dev.berth.new") || !strings.Contains(seen, `"dev.berth.lease":"00000000000a"`) {
		t.Errorf("seen %s", seen)
	}
}

// TestReservedLease: a lease that precreate has taken for this container is taken over.
func TestReservedLease(t *testing.T) {
	const prepared = "prepare 00000000000b rootfs; tell prepared 00000000000b a note; runtime " + createLine
	const refused = "is not reserved for it"
	spec := strings.Replace(original, "{", `{"hooks":{"createRuntime":[{"path":"/usr/bin/berth-hook","args":["berth-hook","bind","--lease","00000000000b"]}]},`, 1)
	tests := []struct {
		name  string
		lease ledger.Lease
		calls string
		err   string
	}{
		{"this container's", ledger.Lease{ID: "00000000000b", State: ledger.Reserved, Owner: ledger.Owner{Container: "c1"}}, prepared, ""},
		{"of a container that has no name yet", ledger.Lease{ID: "00000000000b", State: ledger.Reserved}, prepared, ""},
		{"another container's", ledger.Lease{ID: "00000000000b", State: ledger.Reserved, Owner: ledger.Owner{Container: "c2"}}, "", refused},
		{"one that a wrapper has taken", ledger.Lease{ID: "00000000000b", State: ledger.Reserved, Owner: ledger.Owner{Container: "c1", RuntimeRoot: "/run/crun"}}, "", refused},
		{"bound already", ledger.Lease{ID: "00000000000b", State: ledger.Bound, Owner: ledger.Owner{Container: "c1"}}, "", refused},
		{"gone", ledger.Lease{ID: "00000000000c", State: ledger.Reserved, Owner: ledger.Owner{Container: "c1"}}, "", refused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := world(t, spec)
			tt.lease.Owner.Process.PID = os.Getpid()
			if err := s.save(ledger.Status{Lease: tt.lease}); err != nil {
				t.Fatal(err)
			}
			r := s.run(t, createLine)
			want(t, "calls", s.calls(t), tt.calls)
			if !strings.Contains(r.stderr, tt.err) || (r.code == 0) != (tt.err == "") {
				t.Errorf("%+v, want %q", r, tt.err)
			}
		})
	}
}

// made is a world in which container c1 exists and holds a lease.
func made(t *testing.T) *setup {
	t.Helper()
	s := world(t, original)
	s.run(t, createLine)
	s.calls(t)
	s.put(t, "state/c1/state.json", `{"config":{"labels":["bundle=`+s.path("bundle")+`"]}}`)
	return s
}

// takes makes a lease the only one.
func takes(l ledger.Lease) func(*testing.T, *setup) {
	return func(t *testing.T, s *setup) {
		t.Helper()
		if l.Owner.Process.PID == 0 {
			l.Owner.Process.PID = 1 << 30
		}
		if err := s.save(ledger.Status{Lease: l}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDelete(t *testing.T) {
	const deleted, released = "runtime " + deleteLine, "runtime " + deleteLine + "; release 00000000000a"
	tests := []struct {
		name     string
		change   func(t *testing.T, s *setup)
		code     int
		calls    string
		restored bool
	}{
		{"the usual", func(*testing.T, *setup) {}, 0, released, true},
		{"fails, container stays", func(t *testing.T, s *setup) { s.put(t, "exit", "3"); s.put(t, "stays", "") }, 3, deleted, false},
		{"fails, container is gone", func(t *testing.T, s *setup) { s.put(t, "exit", "3") }, 3, released, true},
		{"no container any more", func(t *testing.T, s *setup) {
			if err := os.RemoveAll(s.path("state/c1")); err != nil {
				t.Fatal(err)
			}
		}, 0, released, true},
		{"lease is gone already", func(t *testing.T, s *setup) {
			if err := os.Remove(s.path("lease.json")); err != nil {
				t.Fatal(err)
			}
		}, 0, deleted, true},
		{"ledger can't be opened", func(_ *testing.T, s *setup) { s.NodeErr = "corrupt" }, 0, deleted, false},
		{"bundle is gone", func(t *testing.T, s *setup) {
			if err := os.RemoveAll(s.path("bundle")); err != nil {
				t.Fatal(err)
			}
		}, 0, released, false},
		{"the next life is being made", func(t *testing.T, s *setup) {
			l := ledger.Lease{ID: "00000000000b", State: ledger.Reserved, Owner: ledger.Owner{
				Container:   "c1",
				RuntimeRoot: s.path("state"), Bundle: s.path("bundle"), Process: ledger.Process{PID: os.Getpid()},
			}}
			if err := s.save(ledger.Status{Lease: l}); err != nil {
				t.Fatal(err)
			}
		}, 0, deleted, false},
		{"the next life is made meanwhile", func(t *testing.T, s *setup) {
			l := ledger.Lease{ID: "00000000000b", State: ledger.Bound, Owner: ledger.Owner{
				Container:   "c1",
				RuntimeRoot: s.path("state"), Bundle: s.path("bundle"), Process: ledger.Process{PID: os.Getpid()},
			}}
			next, err := json.Marshal(ledger.Status{Lease: l})
			if err != nil {
				t.Fatal(err)
			}
			s.put(t, "next.json", string(next))
			s.put(t, "runtime", strings.Replace(s.get(t, "runtime"), "\nexit", "\nmv next.json lease.json\nexit", 1))
		}, 0, deleted, false},
		{"taken over from precreate", takes(ledger.Lease{ID: "00000000000a", State: ledger.Bound, Owner: ledger.Owner{Container: "c1"}}), 0, released, true},
		{"taken over, with no name", takes(ledger.Lease{ID: "00000000000a", State: ledger.Bound}), 0, released, true},
		{"precreate's for another life", takes(ledger.Lease{ID: "00000000000b", State: ledger.Bound, Owner: ledger.Owner{Container: "c1"}}), 0, deleted, true},
		{"precreate's for another container", takes(ledger.Lease{ID: "00000000000a", State: ledger.Bound, Owner: ledger.Owner{Container: "c2"}}), 0, deleted, true},
		{"taken over, and still being made", takes(ledger.Lease{ID: "00000000000a", State: ledger.Reserved, Owner: ledger.Owner{Container: "c1", Process: ledger.Process{PID: os.Getpid()}}}), 0, deleted, false},
		{"same id under another root", func(t *testing.T, s *setup) {
			l := ledger.Lease{ID: "00000000000b", Owner: ledger.Owner{Container: "c1", RuntimeRoot: "/run/other"}}
			if err := s.save(ledger.Status{Lease: l}); err != nil {
				t.Fatal(err)
			}
		}, 0, deleted, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := made(t)
			tt.change(t, s)
			r := s.run(t, deleteLine)
			want(t, "calls", s.calls(t), tt.calls)
			if r.code != tt.code || r.stderr != "" && s.has("bundle") {
				t.Errorf("%+v, want code %d", r, tt.code)
			}
			if got := s.get(t, "bundle/config.json") == original; got != tt.restored {
				t.Errorf("restored: %v, want %v", got, tt.restored)
			}
			if !tt.restored {
				return
			}
			// Engines call it twice: the second finds nothing and becomes the runtime.
			again := s.run(t, deleteLine)
			want(t, "second delete", s.calls(t), deleted)
			checkSamePID(t, s, again)
		})
	}
}

// TestDeleteKeepsLeaseOfLivingProcess: the runtime has deleted the container, but its init lives: the
// lease stays.
func TestDeleteKeepsLeaseOfLivingProcess(t *testing.T) {
	s := made(t)
	leases, err := (&fakeNode{setup: *s}).Leases()
	if err != nil || len(leases) != 1 {
		t.Fatal(leases, err)
	}
	l := leases[0]
	l.State, l.Owner.Process = ledger.Bound, ledger.Process{PID: os.Getpid()}
	if err := s.save(l); err != nil {
		t.Fatal(err)
	}
	r := s.run(t, deleteLine)
	want(t, "calls", s.calls(t), "runtime "+deleteLine)
	if want := "berth: " + ledger.ErrLive.Error() + "\n"; r.code != 0 || r.stderr != want {
		t.Errorf("%+v, want %q", r, want)
	}
}

func TestDeleteOfGuardedContainer(t *testing.T) {
	s := world(t, nothing)
	s.Concerned = true
	s.run(t, createLine)
	s.put(t, "state/c1/state.json", `{"config":{"labels":["bundle=`+s.path("bundle")+`"]}}`)
	s.calls(t)
	s.run(t, deleteLine)
	want(t, "calls", s.calls(t), "runtime "+deleteLine)
	want(t, "config.json", s.get(t, "bundle/config.json"), nothing)
}

// TestDeleteOfRemovedBundle: an engine can remove the bundle while the runtime deletes the container,
// and create the next one.
func TestDeleteOfRemovedBundle(t *testing.T) {
	for _, tt := range []struct{ name, meanwhile, config string }{
		{"gone", "rm -r bundle", ""},
		{"another one", "mv bundle old && mkdir bundle && echo next >bundle/config.json && rm -r old", "next\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := made(t)
			s.put(t, "runtime", strings.Replace(s.get(t, "runtime"), "\nexit", "\n"+tt.meanwhile+"\nexit", 1))
			if r := s.run(t, deleteLine); r.code != 0 || r.stderr != "" {
				t.Errorf("%+v", r)
			}
			want(t, "calls", s.calls(t), "runtime "+deleteLine+"; release 00000000000a")
			if tt.config != "" {
				want(t, "config.json", s.get(t, "bundle/config.json"), tt.config)
			}
		})
	}
}

func TestDeleteForwardsSignals(t *testing.T) {
	s := made(t)
	s.put(t, "wait", "")
	cmd := s.command(t, deleteLine)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for !s.has("ready") {
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 7 {
		t.Errorf("exit code %d, want the runtime's 7", got)
	}
	if s.has("lease.json") == false {
		t.Error("the lease of a container that is still there was released")
	}
}

func TestDeleteKilledRuntime(t *testing.T) {
	s := made(t)
	s.put(t, "runtime", "#!/bin/sh\nkill -KILL $$\n")
	if r := s.run(t, deleteLine); r.code != 128+int(syscall.SIGKILL) {
		t.Errorf("%+v", r)
	}
}

// TestDeleteKeepsNextBundle: a late delete keeps the bundle of the container that was created
// meanwhile.
func TestDeleteKeepsNextBundle(t *testing.T) {
	for _, tt := range []struct{ name, line string }{
		{"being made", createLine}, {"of another name", strings.Replace(createLine, " c1", " c2", 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := world(t, nothing)
			s.Concerned = true
			s.run(t, createLine)
			s.put(t, "state/c1/state.json", `{"config":{"labels":["bundle=`+s.path("bundle")+`"]}}`)
			slow := "case \"$*\" in *create*) touch creating; while ! test -e end; do sleep 0.01; done;; *) touch deleting; while ! test -e creating; do sleep 0.01; done;; esac\nexit"
			s.put(t, "runtime", strings.Replace(s.get(t, "runtime"), "\nexit", "\n"+slow, 1))
			older := s.command(t, deleteLine)
			newer := s.command(t, tt.line)
			if err := older.Start(); err != nil {
				t.Fatal(err)
			}
			for !s.has("deleting") {
				time.Sleep(time.Millisecond)
			}
			if err := newer.Start(); err != nil {
				t.Fatal(err)
			}
			if err := older.Wait(); err != nil {
				t.Error(err)
			}
			if got := s.get(t, "bundle/config.json"); !strings.Contains(got, "PREPARED=1") {
				t.Errorf("config.json under the newer create: %s", got)
			}
			s.put(t, "end", "")
			if err := newer.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDeleteKeepsForeignBundle: an annotation named bundle doesn't make a delete restore another
// container's bundle.
func TestDeleteKeepsForeignBundle(t *testing.T) {
	s := world(t, nothing)
	s.Concerned = true
	s.run(t, createLine)
	for _, labels := range []string{`"bundle=BUNDLE","bundle=/nowhere"`, `"bundle=BUNDLE"`} {
		for _, id := range []string{"c1", "c2"} {
			s.put(t, "state/"+id+"/state.json", `{"config":{"labels":[`+strings.ReplaceAll(labels, "BUNDLE", s.path("bundle"))+`]}}`)
		}
		s.run(t, strings.Replace(deleteLine, " c1", " c2", 1))
		if got := s.get(t, "bundle/config.json"); !strings.Contains(got, "PREPARED=1") {
			t.Errorf("labels %s: config.json of c1 is %s", labels, got)
		}
	}
}
