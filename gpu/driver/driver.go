// Package driver reads the information that NVIDIA's kernel modules publish in /proc and /sys:
// version, majors, GPUs, device file settings and the capabilities of MIG. All of it is plain text,
// cheap to read, and there without NVML; a snapshot is checked against it at each container start.
//
// It changes nothing: making nodes is the business of package gpu/nodes. A
// machine without the driver is no error; everything is then empty.
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

// Version of the loaded kernel module, "" if none is loaded.
func Version(h gpu.Host) (string, error) {
	v, err := smallfile.String(h.SysPath("module/nvidia/version"))
	if errors.Is(err, fs.ErrNotExist) {
		return procVersion(h)
	}
	return v, err
}

// procVersion reads the version where /sys is hidden.
func procVersion(h gpu.Host) (string, error) {
	text, err := smallfile.String(h.ProcPath("driver/nvidia/version"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	v, ok := parseVersion(text)
	if !ok {
		return "", fmt.Errorf("read %s: no version in %q", h.ProcPath("driver/nvidia/version"), text)
	}
	return v, nil
}

// parseVersion finds the version in "NVRM version: NVIDIA UNIX x86_64 Kernel
// Module  550.163.01  Mon …", also in the words of the open kernel modules.
func parseVersion(text string) (string, bool) {
	line, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(line, "NVRM version:") {
		return "", false
	}
	for _, word := range strings.Fields(line) {
		if isVersion(word) {
			return word, true
		}
	}
	return "", false
}

func isVersion(word string) bool {
	parts := strings.Split(word, ".")
	if len(parts) < 2 || len(parts) > 4 {
		return false
	}
	for _, p := range parts {
		if _, err := strconv.ParseUint(p, 10, 32); err != nil {
			return false
		}
	}
	return true
}

// Addresses lists the PCI addresses of the GPUs that the kernel module drives, sorted: the names
// below /proc/driver/nvidia/gpus. GPUs that NVML has lost are still listed.
func Addresses(h gpu.Host) ([]string, error) {
	return smallfile.Names(h.ProcPath("driver/nvidia/gpus"))
}

// GPU is the content of one GPU's information file, which the kernel module writes.
type GPU struct {
	PCI   string
	UUID  string // "" until the driver has read it
	Model string
	Minor int // -1 if the file doesn't have it
}

// GPUs reads the information of every GPU, in the order of [Addresses].
func GPUs(h gpu.Host) ([]GPU, error) {
	addresses, err := Addresses(h)
	if err != nil {
		return nil, err
	}
	var all []GPU
	for _, a := range addresses {
		text, err := smallfile.Read(h.ProcPath("driver/nvidia/gpus", a, "information"), 1<<16)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		all = append(all, parseInformation(a, string(text)))
	}
	return all, nil
}

func parseInformation(pci, text string) GPU {
	g := GPU{PCI: pci, Minor: -1}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Model":
			g.Model = value
		case "GPU UUID":
			if !strings.Contains(value, "?") {
				g.UUID = value
			}
		case "Device Minor":
			if n, err := strconv.ParseUint(value, 10, 20); err == nil {
				g.Minor = int(n)
			}
		}
	}
	return g
}
