package setup

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDiagnose: each state of an engine, with what to do about it.
func TestDiagnose(t *testing.T) {
	unit := machine{dockerConfigPath: "{}", unitFile: "[Service]\n"}
	ready, _ := unit.set(t, "docker", "28.5.2", usual)
	broken := machine{dockerConfigPath: "{"}
	changed, _ := unit.set(t, "docker", "28.5.2", usual)
	changed[dockerConfigPath] = "{}"
	late, _ := machine{
		dockerConfigPath: "{}", unitFile: "[Service]\n", "/etc/systemd/system/docker.service.d/z.conf": "[Service]\nEnvironment=PATH=/x\n",
	}.set(t, "docker", "28.5.2", usual)
	path := "/data/engines/docker:" + defaultPath
	fine := Running{Answers: true, Default: "runc", Path: path, CDI: []string{"/etc/cdi", "/var/run/cdi"}, Runtimes: map[string]string{"berth": "/usr/bin/berth-runtime", "runc": "runc"}}
	other := fine
	other.Runtimes = map[string]string{"runc": "runc"}
	other.Path = defaultPath
	moved := fine
	moved.Runtimes, moved.Default = map[string]string{"berth": "/opt/x", "nvidia": "/usr/bin/berth-runtime"}, "nvidia"
	noCDI := fine
	noCDI.CDI = nil
	more, _ := machine{dockerConfigPath: `{"runtimes": {"kata": {"path": "/usr/bin/kata"}, "other": {"path": "/opt/b"}}, "default-runtime": "kata"}`, unitFile: "[Service]\n"}.set(t, "docker", "28.5.2", usual)
	others := fine
	others.Runtimes = map[string]string{"berth": "/usr/bin/berth-runtime", "other": "/opt/a"}
	podman, _ := machine{}.set(t, "podman", "5.8.6", withDefault())
	plain, _ := machine{}.set(t, "podman", "5.8.6", usual)
	first, _ := unit.set(t, "docker", "28.5.2", withDefault())
	const runc = "ok: the default runtime is runc: containers get GPUs with --runtime berth, and with --device berth/gpus=1, by berth's hook, with any (berth setup docker --default changes that)"
	for _, c := range []struct {
		name, engine, version string
		files                 machine
		running               Running
		want                  []string
	}{
		{"fine", "docker", "28.5.2", ready, fine, []string{"ok: 28.5.2 is set up", runc}},
		{"not set up", "docker", "28.5.2", unit, fine, []string{"warning: isn't set up -> berth setup docker"}},
		{"broken", "docker", "28.5.2", broken, fine, []string{"failure: /etc/docker/daemon.json: line 1, column 2: unexpected end of JSON input -> put it right, then berth setup docker"}},
		{"changed since", "docker", "28.5.2", changed, fine, []string{"failure: isn't set up any more as it was: /etc/docker/daemon.json -> berth setup docker"}},
		{"not running", "docker", "28.5.2", ready, Running{}, []string{"ok: 28.5.2 is set up", "warning: doesn't answer, so what it runs with isn't known -> systemctl start docker"}},
		{
			"not restarted", "docker", "28.5.2", ready, other,
			[]string{
				"ok: 28.5.2 is set up", "failure: runs without the runtime berth: it hasn't read its configuration since -> systemctl daemon-reload && systemctl restart docker",
				"warning: --gpus is refused: dockerd's PATH is without /data/engines/docker -> systemctl daemon-reload && systemctl restart docker", runc,
			},
		},
		{
			"moved", "docker", "28.5.2", ready, moved,
			[]string{"ok: 28.5.2 is set up", "failure: runs with /opt/x as the runtime berth -> systemctl daemon-reload && systemctl restart docker", "ok: the default runtime is nvidia"},
		},
		{
			"overruled", "docker", "28.5.2", late, fine,
			[]string{"ok: 28.5.2 is set up", "warning: /etc/systemd/system/docker.service.d/z.conf sets PATH after berth's drop-in does -> have it begin with /data/engines/docker, or docker run --gpus is refused", runc},
		},
		{"old", "docker", "20.10.24", ready, fine, []string{
			"ok: 20.10.24 is set up", "warning: --device berth/gpus=2 isn't known to this version -> docker 25.0 or newer; docker run --gpus 2 works",
			"ok: the default runtime is runc: containers get GPUs with --runtime berth (berth setup docker --default changes that)",
		}},
		{"new", "docker", "29.2.1", ready, fine, []string{"ok: 29.2.1 is set up", "warning: --gpus 2 are the GPUs 0 and 1 for this version, not two free ones -> policy.nvidia_indices = \"count\"", runc}},
		{
			"without CDI", "docker", "28.5.2", ready, noCDI,
			[]string{"ok: 28.5.2 is set up", "warning: --device berth/gpus=2 is refused: dockerd runs without CDI -> systemctl daemon-reload && systemctl restart docker", runc},
		},
		{
			"with other runtimes", "docker", "28.5.2", more, others,
			[]string{
				"ok: 28.5.2 is set up",
				"warning: runs without the runtime kata, which /etc/docker/daemon.json has -> systemctl reload docker",
				"warning: runs with /opt/a as the runtime other, and /etc/docker/daemon.json says /opt/b -> systemctl reload docker",
				"warning: runs with the default runtime runc, and /etc/docker/daemon.json says kata -> systemctl reload docker", runc,
			},
		},
		{"containerd beside docker", "containerd", "2.1.9", machine{containerdConfigPath: "version = 3\n"}, Running{}, []string{"ok: isn't set up, which only Kubernetes and its like need (berth setup containerd)"}},
		{"podman", "podman", "5.8.6", podman, Running{Default: "berth"}, []string{"ok: 5.8.6 is set up", "ok: the default runtime is berth"}},
		{"podman without", "podman", "5.8.6", plain, Running{Default: "crun"}, []string{"ok: 5.8.6 is set up", "ok: the default runtime is crun: containers get GPUs with --runtime berth, and with --device berth/gpus=1 or an annotation that policy trusts, by berth's hooks, with any (berth setup podman --default changes that)"}},
		{
			"podman overruled", "podman", "5.8.6", podman,
			Running{Default: "crun"},
			[]string{
				"ok: 5.8.6 is set up", "failure: runs with the default runtime crun, and not with berth, which it was set up with -> " +
					"look for a file, or a CONTAINERS_CONF, that sets another runtime after /etc/containers/containers.conf.d/50-berth.conf",
			},
		},
		{
			"docker with an older default", "docker", "28.5.2", first, fine,
			[]string{
				"ok: 28.5.2 is set up", "failure: runs with the default runtime runc, and not with berth, which it was set up with -> " +
					"systemctl daemon-reload && systemctl restart docker",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, f := range Diagnose(c.engine, c.files.host(c.version), usual, c.files.record(t, c.engine), c.running) {
				got = append(got, strings.TrimSuffix(string(f.State)+": "+f.Text+" -> "+f.Mend, " -> "))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	off := machine{containerdConfigPath: "disabled_plugins = ['cri']\n"}.host("2.1.9")
	off.Dump = "disabled_plugins = ['cri']\n"
	if got := Diagnose("containerd", off, usual, nil, Running{}); len(got) != 1 || got[0].State != OK {
		t.Errorf("got %+v", got)
	}
	if got := Diagnose("docker", Host{FS: fstest.MapFS{}}, usual, nil, Running{}); got != nil {
		t.Errorf("got %+v", got)
	}
}

// TestDiagnoseContainerd: it doesn't say what it runs with, but when it has started.
func TestDiagnoseContainerd(t *testing.T) {
	m, _ := machine{containerdConfigPath: "version = 3\n"}.dumped(t, "2.1.9", dumpOf(v3), usual)
	start := time.Unix(1000, 0)
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
			h := m.host("2.1.9")
			h.Dump = dumpOf(v3, berthsDropIn)
			files, ok := h.FS.(fstest.MapFS)
			for _, f := range files {
				f.ModTime = c.changed
			}
			var got []State
			for _, f := range Diagnose("containerd", h, usual, m.record(t, "containerd"), Running{Started: c.started}) {
				got = append(got, f.State)
			}
			if diff := cmp.Diff(c.want, got); !ok || diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
