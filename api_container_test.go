package berth_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// lookAround is a script that prints the devices that the container can open, its variables and its
// libraries, and waits for the end of its input.
const lookAround = `for n in /host/dev/nvidia* /host/dev/nvidia-caps/* /host/dev/infiniband/uverbs* /dev/nvidia*; do
	test -c $n || continue
	case $( (: <$n) 2>&1) in *"not permitted"*) ;; *) echo open $n;; esac
done
mknod /tmp/node c 195 0 2>/dev/null && echo made a node
echo BERTH_DEVICES=$BERTH_DEVICES NVIDIA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES
ls /usr/local/nvidia/lib*/libcuda.so.1
echo done; read x; exit 0`

// writeBundle writes config.json of a privileged container that is prepared for the lease.
func writeBundle(ctx context.Context, node *berth.Node, lease ledger.Lease, dir, cgroup string) error {
	all := []string{"CAP_MKNOD", "CAP_DAC_OVERRIDE", "CAP_FOWNER"}
	spec := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: []string{"/bin/busybox", "sh", "-c", lookAround}, Env: []string{"PATH=/bin"}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/host/dev", Type: "bind", Source: "/dev", Options: []string{"rbind"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: cgroup,
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "ipc"}, {Type: "uts"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
		},
	}
	root, err := berth.OpenRoot(filepath.Join(dir, "rootfs"))
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := node.Prepare(ctx, spec, &lease, root); err != nil {
		return err
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
}

// makeRoot makes a root file system that contains only busybox.
func makeRoot(dir string) error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, d := range []string{"bin", "tmp", "proc", "dev", "host/dev"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"mknod", "ls", "test"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755)
}
