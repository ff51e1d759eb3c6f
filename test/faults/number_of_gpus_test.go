package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// verbCase is a verb on a server, and what it has to end with and to say.
type verbCase struct {
	words []string
	code  int
	says  string // in the output, or in the one line on stderr if code isn't 0
}

func (s gpuServer) check(t *testing.T, before []string, cases []verbCase) {
	t.Helper()
	for _, c := range cases {
		said := s.berth(t, append(before[:len(before):len(before)], c.words...)...)
		text := said.Out
		if c.code != 0 {
			text = said.Err
		}
		if said.Code != c.code || !strings.Contains(text, c.says) || strings.Count(said.Err, "\n") > 1 || c.code == 0 && said.Err != "" {
			t.Errorf("berth %q: %+v, want exit code %d and %q", c.words, said, c.code, c.says)
		}
	}
}

// Servers with a driver and no GPU, with 64 GPUs, and without a driver.
func TestNumberOfGPUs(t *testing.T) {
	box := rig.ImagePath(t, "busybox")
	plain := []string{"run", "--rm", box, "echo", "plain"}
	t.Run("0", func(t *testing.T) {
		s := startGPUServer(t, "no-gpu")
		none := "the driver has no GPU; berth doctor looks for the reason\n"
		s.check(t, nil, []verbCase{
			{[]string{"discover"}, 0, "driver 550.163.01, 0 GPUs"},
			{[]string{"discover", "--if-stale", "--processes", "--quiet"}, 0, ""},
			{[]string{"gpus"}, 0, none},
			{[]string{"gpus", "--json"}, 0, `"devices": []`},
			{[]string{"topo"}, 0, none},
			{[]string{"leases"}, 0, "there are no leases"},
			{[]string{"ps"}, 0, "GPUS"},
			{[]string{"cdi", "generate"}, 0, ""},
			{[]string{"alloc", "1", "--", "true"}, 125, "node has 0 GPUs, 1 asked"},
			{[]string{"alloc", "all", "--", "true"}, 125, "node has 0 GPUs"},
			{[]string{"alloc", "device=0", "--", "true"}, 125, "node has no device 0; it has none of the kind"},
			{[]string{"alloc", "--wait", "1", "--", "true"}, 125, "node has 0 GPUs"}, // waiting is of no use
			{[]string{"run", "--rm", "--gpus", "1", box, "true"}, 125, "node has 0 GPUs, 1 asked"},
			{plain, 0, "plain\n"},
		})
		if f := s.findings(t, "driver.module"); len(f) != 1 || f[0].State != "warning" || !strings.Contains(f[0].Text, "no NVIDIA GPU") {
			t.Errorf("doctor: %+v", f)
		}
	})
	t.Run("64", func(t *testing.T) {
		s := startGPUServer(t, "sixty-four")
		s.check(t, nil, []verbCase{
			{[]string{"discover"}, 0, "64 GPUs"},
			{[]string{"discover", "--if-stale", "--processes", "--quiet"}, 0, ""},
			{[]string{"alloc", "64", "--", "sh", "-c", "echo $BERTH_DEVICES | tr , '\\n' | sort -u | wc -l"}, 0, "64\n"},
			{[]string{"alloc", "all", "--", "true"}, 0, ""},
			{[]string{"alloc", "65", "--", "true"}, 125, "node has 64 GPUs, 65 asked"},
			{[]string{"alloc", "device=64", "--", "true"}, 125, "node has no device 64"},
			{[]string{"run", "--rm", "--gpus", "64", box, "sh", "-c", "ls /dev/nvidia[0-9]* | wc -l"}, 0, "64\n"},
			{[]string{"run", "--rm", "--gpus", "device=63", box, "sh", "-c", "ls /dev/nvidia[0-9]*"}, 0, "/dev/nvidia63\n"},
			{[]string{"cdi", "generate"}, 0, ""},
			{plain, 0, "plain\n"},
		})
		if rows := strings.Split(strings.TrimSpace(s.Do(t, s.Berth, "gpus")), "\n"); len(rows) != 2+1+64 {
			t.Errorf("berth gpus has %d lines", len(rows))
		}
		var topo struct{ Matrix [][]string }
		rig.Must(t, json.Unmarshal([]byte(s.Do(t, s.Berth, "topo", "--json")), &topo))
		if len(topo.Matrix) != 64 || len(topo.Matrix[63]) != 64 {
			t.Errorf("berth topo has %d rows", len(topo.Matrix))
		}
		s.detach(t, "half", "32")
		s.fails(t, []string{"alloc", "33", "--", "true"}, 75, "33 asked, 32 of 64 free")
	})
	t.Run("no driver", func(t *testing.T) {
		s := startGPUServer(t, "no-gpu")
		dir := t.TempDir()
		rig.Must(t, os.MkdirAll(filepath.Join(dir, "sys"), 0o755))
		config := filepath.Join(dir, "config.toml")
		rig.Must(t, os.WriteFile(config, []byte("state = \""+dir+"/state\"\n[host]\nsys = \""+dir+"/sys\"\nnvml = \"/nonexistent/libnvidia-ml.so.1\"\n"), 0o600))
		for _, words := range [][]string{{"mount", "-t", "tmpfs", "none", "/proc/driver"}, {"mount", "--bind", "/run/simnode/real-devices", "/proc/devices"}} {
			s.Do(t, words[0], words[1:]...)
			t.Cleanup(func() { s.Do(t, "umount", words[len(words)-1]) })
		}
		why := "cannot open shared object file: No such file or directory; load the NVIDIA driver"
		s.check(t, []string{"--config", config}, []verbCase{
			{[]string{"discover"}, 1, why},
			{[]string{"discover", "--if-stale"}, 1, why},
			{[]string{"discover", "--if-stale", "--processes", "--quiet"}, 0, ""}, // the timer's
			{[]string{"gpus"}, 1, why},
			{[]string{"topo"}, 1, why},
			{[]string{"leases"}, 0, "there are no leases"},
			{[]string{"ps"}, 0, "GPUS"},
			{[]string{"alloc", "1", "--", "true"}, 125, why},
			{[]string{"run", "--rm", "--gpus", "1", box, "true"}, 125, why},
			{plain, 0, "plain\n"},
		})
		said := s.berth(t, "--config", config, "doctor")
		if !strings.Contains(said.Out, "no driver is loaded") {
			t.Errorf("doctor: %s", said.Out)
		}
	})
}
