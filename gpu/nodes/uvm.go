package nodes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/berth-gpu/berth/gpu"
)

// ErrNoModprobe means that no modprobe was found.
var ErrNoModprobe = errors.New("no modprobe found")

// modprobePrograms are the usual paths of modprobe.
func modprobePrograms() []string {
	return []string{"/sbin/modprobe", "/usr/sbin/modprobe", "/bin/modprobe", "/usr/bin/modprobe"}
}

// LoadUVM loads nvidia-uvm if the driver is loaded without it: CUDA needs it, and otherwise only
// the start of a CUDA program loads it. It reports whether it has loaded the module. programs are
// tried in order; none means the usual places of modprobe.
func LoadUVM(ctx context.Context, h gpu.Host, programs ...string) (bool, error) {
	if len(programs) == 0 {
		programs = modprobePrograms()
	}
	if wanted, err := wantsUVM(h); err != nil || !wanted {
		return false, err
	}
	program, err := firstExisting(programs)
	if err != nil {
		return false, fmt.Errorf("load nvidia-uvm: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, "nvidia-uvm")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		return false, fmt.Errorf("load nvidia-uvm: %s: %w: %s", program, err, strings.Join(strings.Fields(string(out)), " "))
	}
	if wanted, err := wantsUVM(h); err != nil || wanted {
		return false, errors.Join(err, fmt.Errorf("load nvidia-uvm: %s succeeded, yet %s doesn't list the module", program, h.ProcPath("devices")))
	}
	return true, nil
}

// wantsUVM reports whether the driver is loaded without nvidia-uvm.
func wantsUVM(h gpu.Host) (bool, error) {
	majors, err := gpu.ReadMajors(h)
	if err != nil {
		return false, err
	}
	_, driver := majorOf(majors, "nvidia", "nvidia-frontend")
	_, uvm := majorOf(majors, "nvidia-uvm")
	return driver && !uvm, nil
}

func firstExisting(programs []string) (string, error) {
	for _, p := range programs {
		fi, err := os.Stat(p)
		if err == nil && fi.Mode().IsRegular() {
			return p, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", ErrNoModprobe
}
