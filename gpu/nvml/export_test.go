package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// ComputedProfiles returns the computed profile of every slice of the node, as for a driver that
// doesn't name profiles.
func (s Source) ComputedProfiles(ctx context.Context) (map[string]string, error) {
	l := s.newLibrary(ctx)
	if err := l.open(); err != nil {
		return nil, err
	}
	defer l.close()
	start, err := l.readStart()
	if err != nil {
		return nil, err
	}
	profiles := map[string]string{}
	for i := range start.GPUs {
		handle, ret := l.nvml.DeviceGetHandleByIndex(i)
		if err := checkReturn("nvmlDeviceGetHandleByIndex", ret); err != nil {
			return nil, err
		}
		r := l.readGPU(i)
		d := device{caller: l.caller, nvml: handle, out: &r}
		for _, s := range r.Slices {
			slice, ret := handle.GetMigDeviceHandleByIndex(s.Index)
			if err := checkReturn("nvmlDeviceGetMigDeviceHandleByIndex", ret); err != nil {
				return nil, err
			}
			if profiles[s.UUID], err = d.computed(slice, s.GI); err != nil {
				return nil, err
			}
		}
	}
	return profiles, nil
}

func (d device) computed(slice nvml.Device, gi int) (string, error) {
	a, ret := slice.GetAttributes()
	if err := checkReturn("nvmlDeviceGetAttributes", ret); err != nil {
		return "", err
	}
	kind, err := d.instanceKind(gi)
	return profileName(a, d.out.Memory, kind), err
}
