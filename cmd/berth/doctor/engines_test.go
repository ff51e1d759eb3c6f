package doctor

import (
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cmd/berth/engines"
	"github.com/berth-gpu/berth/hook/setup"
)

// TestDecideEngine: each state of an engine with its fix.
func TestDecideEngine(t *testing.T) {
	const (
		restart = "systemctl daemon-reload && systemctl restart docker"
		usual   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		runc    = "ok: the default runtime is runc: containers get GPUs with --runtime berth, and with --device berth/gpus=1, by berth's hook, with any (berth setup docker --default changes that)"
	)
	options := setup.Options{Runtime: "/usr/bin/berth-runtime", Hook: "/usr/bin/berth-hook", Data: "/data"}
	fine := engines.Daemon{
		Answers: true, Default: "runc", Path: "/data/engines/docker:" + usual, CDI: []string{"/etc/cdi", "/var/run/cdi"},
		Runtimes: map[string]string{"berth": "/usr/bin/berth-runtime", "runc": "runc"},
	}
	docker := Engine{Name: "docker", Version: "28.5.2", Options: options, Recorded: true, Daemon: fine}
	podman := Engine{Name: "podman", Version: "5.8.6", Options: options, Recorded: true, Daemon: engines.Daemon{Answers: true, Default: "berth"}}
	containerd := Engine{Name: "containerd", Version: "2.1.9", Options: options, Recorded: true}
	with := func(e Engine, change func(*Engine)) Engine {
		e.Daemon.Runtimes = maps.Clone(e.Daemon.Runtimes)
		change(&e)
		return e
	}
	pending := setup.Plan{Changes: []setup.Change{{Path: "/etc/a"}, {Path: "/etc/b"}}}
	for _, c := range []struct {
		name   string
		engine Engine
		want   []string
	}{
		{"fine", docker, []string{"ok: 28.5.2 is set up", runc}},
		{"of no version", with(docker, func(e *Engine) { e.Version, e.Daemon = "", engines.Daemon{} }), []string{"ok: is set up", "warning: doesn't answer, so what it runs with isn't known -> systemctl start docker"}},
		{"not installed", with(docker, func(e *Engine) { e.PlanErr = setup.ErrNotInstalled }), nil},
		{"not set up", with(docker, func(e *Engine) { e.Plan, e.Recorded = pending, false }), []string{"warning: isn't set up -> berth setup docker"}},
		{"broken", with(docker, func(e *Engine) { e.PlanErr = fs.ErrInvalid }), []string{"failure: invalid argument -> correct it, then berth setup docker"}},
		{"for root alone", with(docker, func(e *Engine) { e.PlanErr = fs.ErrPermission }), []string{"warning: permission denied -> sudo berth doctor"}},
		{"a record for root alone", with(docker, func(e *Engine) { e.RecordErr = fs.ErrPermission }), []string{"warning: permission denied -> sudo berth doctor"}},
		{"a damaged record", with(docker, func(e *Engine) { e.RecordErr = fs.ErrInvalid }), []string{"failure: invalid argument -> move the file away, then berth setup docker"}},
		{"changed since", with(docker, func(e *Engine) { e.Plan = pending }), []string{"failure: isn't set up any more as it was: /etc/a, /etc/b -> berth setup docker"}},
		{"not running", with(docker, func(e *Engine) { e.Daemon = engines.Daemon{} }), []string{"ok: 28.5.2 is set up", "warning: doesn't answer, so what it runs with isn't known -> systemctl start docker"}},
		{
			"not restarted", with(docker, func(e *Engine) { delete(e.Daemon.Runtimes, "berth"); e.Daemon.Path = usual }),
			[]string{
				"ok: 28.5.2 is set up", "failure: runs without the runtime berth: it hasn't read its configuration since -> " + restart,
				"warning: --gpus is refused: dockerd's PATH is without /data/engines/docker -> " + restart, runc,
			},
		},
		{
			"moved", with(docker, func(e *Engine) {
				e.Daemon.Default, e.Daemon.Runtimes = "nvidia", map[string]string{"berth": "/opt/x", "nvidia": "/usr/bin/berth-runtime"}
			}),
			[]string{"ok: 28.5.2 is set up", "failure: runs with /opt/x as the runtime berth -> " + restart, "ok: the default runtime is nvidia"},
		},
		{
			"by a script", with(docker, func(e *Engine) { e.Daemon.Runtimes["berth"] = "/data/engines/docker/berth-runtime" }),
			[]string{"ok: 28.5.2 is set up", runc},
		},
		{
			"with a note", with(docker, func(e *Engine) { e.Plan.Notes = []setup.Note{{Text: "z.conf sets PATH", Fix: "change it"}} }),
			[]string{"ok: 28.5.2 is set up", "warning: z.conf sets PATH -> change it", runc},
		},
		{"old", with(docker, func(e *Engine) { e.Version, e.Daemon.CDI = "20.10.24", nil }), []string{
			"ok: 20.10.24 is set up", "warning: --device berth/gpus=2 isn't known to this version -> docker 25.0 or newer; docker run --gpus 2 works",
			"ok: the default runtime is runc: containers get GPUs with --runtime berth (berth setup docker --default changes that)",
		}},
		{"new", with(docker, func(e *Engine) { e.Version = "29.2.1" }), []string{"ok: 29.2.1 is set up", "warning: --gpus 2 are the GPUs 0 and 1 for this version, not two free ones -> policy.nvidia_indices = \"count\"", runc}},
		{"new, and policy knows", with(docker, func(e *Engine) { e.Version, e.Options.CountIndices = "29.2.1", true }), []string{"ok: 29.2.1 is set up", runc}},
		{
			"without CDI", with(docker, func(e *Engine) { e.Daemon.CDI = nil }),
			[]string{"ok: 28.5.2 is set up", "warning: --device berth/gpus=2 is refused: dockerd runs without CDI -> " + restart, runc},
		},
		{
			"with other runtimes", with(docker, func(e *Engine) {
				e.DockerFile = setup.DockerConfig{Path: "/etc/docker/daemon.json", Default: "kata", Runtimes: map[string]string{"berth": "/usr/bin/berth-runtime", "kata": "/usr/bin/kata", "other": "/opt/b"}}
				e.Daemon.Runtimes["other"] = "/opt/a"
			}),
			[]string{
				"ok: 28.5.2 is set up",
				"warning: runs without the runtime kata, which /etc/docker/daemon.json has -> systemctl reload docker",
				"warning: runs with /opt/a as the runtime other, and /etc/docker/daemon.json says /opt/b -> systemctl reload docker",
				"warning: runs with the default runtime runc, and /etc/docker/daemon.json says kata -> systemctl reload docker", runc,
			},
		},
		{
			"docker with an older default", with(docker, func(e *Engine) { e.ByDefault = true }),
			[]string{"ok: 28.5.2 is set up", "failure: runs with the default runtime runc, and not with berth, which it was set up with -> " + restart},
		},
		{"containerd beside docker", with(containerd, func(e *Engine) { e.Plan, e.Recorded = pending, false }), []string{"ok: isn't set up, which only Kubernetes and its like need (berth setup containerd)"}},
		{"containerd without CRI", with(containerd, func(e *Engine) { e.PlanErr = setup.ErrNoCRI }), []string{"ok: isn't set up, and needn't be: its CRI plugin is off"}},
		{"containerd", containerd, []string{"ok: 2.1.9 is set up"}},
		{
			"containerd not restarted", with(containerd, func(e *Engine) { e.ChangedSince = []string{"/etc/a"} }),
			[]string{"ok: 2.1.9 is set up", "failure: runs with what was in /etc/a before it was changed -> systemctl restart containerd"},
		},
		{"podman", podman, []string{"ok: 5.8.6 is set up", "ok: the default runtime is berth"}},
		{
			"podman without", with(podman, func(e *Engine) { e.Daemon.Default = "crun" }),
			[]string{"ok: 5.8.6 is set up", "ok: the default runtime is crun: containers get GPUs with --runtime berth, and with --device berth/gpus=1 or an annotation that policy trusts, by berth's hooks, with any (berth setup podman --default changes that)"},
		},
		{
			"podman overruled", with(podman, func(e *Engine) { e.Daemon.Default, e.ByDefault = "crun", true }),
			[]string{
				"ok: 5.8.6 is set up", "failure: runs with the default runtime crun, and not with berth, which it was set up with -> " +
					"look for a file, or a CONTAINERS_CONF, that sets another runtime after /etc/containers/containers.conf.d/50-berth.conf",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &report{id: "engines." + c.engine.Name}
			decideEngine(r, c.engine)
			if diff := cmp.Diff(c.want, lines(r.findings)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestReadEngine: the state that is read on a machine on which containerd is set up.
func TestReadEngine(t *testing.T) {
	const (
		main = "/etc/containerd/config.toml"
		dump = "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'runc'\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
	)
	start := time.Unix(1000, 0)
	o := setup.Options{Runtime: "/usr/bin/berth-runtime", Hook: "/usr/bin/berth-hook", Data: "/data"}
	machine := func(t *testing.T, changed time.Time) setup.Host {
		t.Helper()
		files := fstest.MapFS{strings.TrimPrefix(main, "/"): {Data: []byte("version = 3\n"), ModTime: changed}}
		h := setup.Host{FS: files, Version: "2.1.9", Dump: dump, Find: func(string) string { return "" }}
		plan, err := setup.PlanSetup("containerd", h, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range plan.Changes {
			files[strings.TrimPrefix(c.Path, "/")] = &fstest.MapFile{Data: c.After.Data, ModTime: changed}
		}
		text, err := plan.Record.Encode()
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(setup.RecordPath(o.Data, "containerd"), "/")] = &fstest.MapFile{Data: text}
		return h
	}
	for _, c := range []struct {
		name             string
		started, changed time.Time
		want             []State
	}{
		{"restarted since", start, start.Add(-time.Second), []State{OK}},
		{"not since", start, start.Add(time.Second), []State{OK, Failure, Failure}},
		{"nobody knows", time.Time{}, start, []State{OK}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t, c.changed)
			e := ReadEngine(h, "containerd", o, engines.Daemon{Started: c.started})
			if !e.Recorded || e.PlanErr != nil || len(e.Plan.Changes) > 0 {
				t.Errorf("got %+v", e)
			}
			r := &report{}
			decideEngine(r, e)
			var got []State
			for _, f := range r.findings {
				got = append(got, f.State)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	none := ReadEngine(setup.Host{FS: fstest.MapFS{}}, "docker", o, engines.Daemon{})
	r := &report{}
	if decideEngine(r, none); len(r.findings) > 0 {
		t.Errorf("without docker: %+v", r.findings)
	}
	damaged := setup.Host{FS: fstest.MapFS{"data/setup/docker.json": {Data: []byte("{")}}}
	if e := ReadEngine(damaged, "docker", o, engines.Daemon{}); e.RecordErr == nil {
		t.Errorf("got %+v", e)
	}
	file := setup.Host{FS: fstest.MapFS{"etc/docker/daemon.json": {Data: []byte(`{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}`)}}}
	want := setup.DockerConfig{Path: "/etc/docker/daemon.json", Default: "kata", Runtimes: map[string]string{"kata": "/k"}}
	if diff := cmp.Diff(want, ReadEngine(file, "docker", o, engines.Daemon{}).DockerFile); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
