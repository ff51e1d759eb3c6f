package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// DeviceFiles are the driver's parameters for its device nodes.
type DeviceFiles struct {
	// Modify is false when the driver asks user space to leave its nodes alone
	// (the module parameter NVreg_ModifyDeviceFiles).
	Modify   bool
	UID, GID int
	Mode     uint32 // permission bits
}

// defaultDeviceFiles has the driver's defaults, for modules that publish no parameters.
func defaultDeviceFiles() DeviceFiles { return DeviceFiles{Modify: true, Mode: 0o666} }

// Params reads the parameters of the driver's device nodes from /proc/driver/nvidia/params.
func Params(h gpu.Host) (DeviceFiles, error) {
	return readDeviceFiles(h.ProcPath("driver/nvidia/params"))
}

func readDeviceFiles(path string) (DeviceFiles, error) {
	text, err := smallfile.Read(path, 1<<16)
	if errors.Is(err, fs.ErrNotExist) {
		return defaultDeviceFiles(), nil
	}
	if err != nil {
		return DeviceFiles{}, err
	}
	fields, err := parseFields(string(text))
	if err != nil {
		return DeviceFiles{}, fmt.Errorf("%s: %w", path, err)
	}
	return deviceFiles(fields), nil
}

func deviceFiles(fields map[string]uint32) DeviceFiles {
	f := defaultDeviceFiles()
	for key, value := range fields {
		switch key {
		case "ModifyDeviceFiles", "DeviceFileModify":
			f.Modify = value != 0
		case "DeviceFileUID":
			f.UID = int(value)
		case "DeviceFileGID":
			f.GID = int(value)
		case "DeviceFileMode":
			f.Mode = value & 0o777
		}
	}
	return f
}

// parseFields reads the decimal "Key: value" lines of the driver that have to do
// with device files; other keys have values of every kind.
func parseFields(text string) (map[string]uint32, error) {
	fields := map[string]uint32{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if !strings.Contains(key, "DeviceFile") {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("parse %q: want a decimal number", strings.TrimSpace(line))
		}
		fields[key] = uint32(n)
	}
	return fields, nil
}
