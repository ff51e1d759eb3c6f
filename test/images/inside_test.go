package images

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// nvidia-smi is where people look for it, runs, and shows the leased GPUs.
func TestNvidiaSMI(t *testing.T) {
	through(t, append(entryPoints(), readOnlyEntryPoints()...), func(t *testing.T, d entryPoint) {
		d.gpus = "2"
		out := good(t, d.run(t, imageOf(t, debianRoot, nil), `command -v nvidia-smi; echo $BERTH_DEVICES; for p in nvidia-smi /usr/bin/nvidia-smi /usr/local/nvidia/bin/nvidia-smi; do
			$p -L | sed 's/.*UUID: \(.*\))/\1/' | tr '\n' ,; echo; done`))
		got := lines(out)
		if len(got) != 5 || got[0] != "/usr/bin/nvidia-smi" || len(strings.Split(got[1], ",")) != 2 {
			t.Fatalf("%q", got)
		}
		for _, listed := range got[2:] {
			if listed != got[1]+"," {
				t.Errorf("nvidia-smi shows %s, the lease is %s", listed, got[1])
			}
		}
	})
}

// Variables say how to count devices, and that NVIDIA's tools have nothing to add,
// whatever the image or the user says.
func TestEnvironment(t *testing.T) {
	through(t, entryPoints(), func(t *testing.T, d entryPoint) {
		d.env = []string{"NVIDIA_VISIBLE_DEVICES=all", "CUDA_DEVICE_ORDER=FASTEST_FIRST", "BERTH_LEASE=another"}
		got := map[string][]string{}
		for _, line := range lines(good(t, d.run(t, imageOf(t, debianRoot, nil), "tr '\\0' '\\n' </proc/self/environ"))) {
			name, value, _ := strings.Cut(line, "=")
			got[name] = append(got[name], value)
		}
		for name, want := range map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} {
			if d := cmp.Diff([]string{want}, got[name]); d != "" {
				t.Errorf("%s (-want +got):\n%s", name, d)
			}
		}
		if l := got["BERTH_LEASE"]; len(l) != 1 || len(l[0]) != 12 {
			t.Errorf("BERTH_LEASE is %q", l)
		}
		if len(got["CUDA_VISIBLE_DEVICES"]) > 0 {
			t.Errorf("CUDA_VISIBLE_DEVICES is %q", got["CUDA_VISIBLE_DEVICES"])
		}
	})
}

// A container can't make device nodes.
func TestNoMknod(t *testing.T) {
	const mkNode = 1 << 27
	through(t, entryPoints(), func(t *testing.T, d entryPoint) {
		out := good(t, d.run(t, imageOf(t, debianRoot, nil), "grep ^Cap /proc/self/status; mknod /tmp/node c 1 3 2>&1 || true"))
		got := lines(out)
		if len(got) != 6 || !strings.HasSuffix(got[5], "Operation not permitted") {
			t.Fatalf("%q", got)
		}
		for _, line := range got[:5] {
			set, err := strconv.ParseUint(strings.Fields(line)[1], 16, 64)
			rig.Must(t, err)
			if set&mkNode != 0 {
				t.Errorf("CAP_MKNOD is in %s", line)
			}
		}
	})
}

// The driver's files are mounted read-only, and with nosuid and nodev: a container can't change them.
func TestDriverCannotBeChanged(t *testing.T) {
	before := driverFiles(t)
	const script = `grep -E ' /usr/(local/nvidia|bin/nvidia-smi) ' /proc/self/mountinfo | cut -d' ' -f5,6
		cd /usr/local/nvidia
		for try in 'touch new' 'mkdir new' 'rm lib64/libcuda.so.1' 'mv bin lib' 'chmod 777 .' 'cp /bin/true bin/nvidia-smi' 'cp /bin/true /usr/bin/nvidia-smi' \
			'rm /usr/bin/nvidia-smi' 'ln -f lib64/libcuda.so.1 lib64/new' 'mount -o remount,bind,rw /usr/local/nvidia' 'umount /usr/local/nvidia'; do
			$try 2>/dev/null && echo "$try works"
		done; true`
	want := []string{"/usr/local/nvidia ro,nosuid,nodev,idmapped", "/usr/bin/nvidia-smi ro,nosuid,nodev,idmapped"}
	through(t, append(entryPoints(), readOnlyEntryPoints()...), func(t *testing.T, d entryPoint) {
		got := lines(good(t, d.run(t, imageOf(t, debianRoot, nil), script)))
		for i := range got {
			got[i] = strings.Replace(got[i], ",relatime", "", 1)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	})
	if d := cmp.Diff(before, driverFiles(t)); d != "" {
		t.Errorf("the host's driver directory (-before +after):\n%s", d)
	}
}

// driverFiles identifies every file of the host's driver directory.
func driverFiles(t *testing.T) []string {
	t.Helper()
	root := node.Path("/var/lib/berth/driver")
	files := tree(t, root)
	if len(files) < 20 {
		t.Fatalf("driver directory: %v", files)
	}
	for i, name := range files {
		info, err := os.Lstat(filepath.Join(root, name))
		rig.Must(t, err)
		files[i] = fmt.Sprint(name, " ", info.Mode(), " ", info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(filepath.Join(root, name))
			rig.Must(t, err)
			files[i] += fmt.Sprintf(" %x", sha256.Sum256(data))
		}
	}
	return files
}
