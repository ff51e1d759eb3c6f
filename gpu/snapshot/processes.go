package snapshot

import (
	"fmt"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/json"
)

// processes is the file beside the snapshot that says which processes without a lease
// computed on devices when NVML was last asked.
type processes struct {
	BootID  string                   `json:"boot_id"`
	Devices map[string][]gpu.Process `json:"devices"` // by UUID
}

// SaveProcesses writes the file atomically. Only root reads it: it names programs and users.
func SaveProcesses(path, bootID string, devices map[string][]gpu.Process) error {
	var codec json.Codec
	data, err := codec.Marshal(processes{BootID: bootID, Devices: devices})
	if err == nil {
		err = atomicfile.Write(path, data, 0o600, atomicfile.Options{})
	}
	if err != nil {
		return fmt.Errorf("save processes on GPUs: %w", err)
	}
	return nil
}

// LoadProcesses reads the file: the boot in which the processes were found, and the processes by
// UUID of the device. A file that users other than root could have written is ignored.
func LoadProcesses(path string) (bootID string, devices map[string][]gpu.Process) {
	data, err := readSnapshotFile(path)
	if err != nil {
		return "", nil
	}
	var codec json.Codec
	var p processes
	if err := codec.Unmarshal(data, &p); err != nil {
		return "", nil
	}
	return p.BootID, p.Devices
}
