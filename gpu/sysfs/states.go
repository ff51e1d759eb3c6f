package sysfs

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
)

// ReadPortStates returns the NICs with the states that their ports have now, in a copy and
// at the cost of one small file for each port: links come up after a machine does.
// A NIC or a port that is gone is down.
func ReadPortStates(h gpu.Host, nics []gpu.NIC) ([]gpu.NIC, error) {
	nics = slices.Clone(nics)
	for i := range nics {
		ports := slices.Clone(nics[i].Ports)
		for k := range ports {
			var err error
			dir := h.SysPath("class/infiniband", nics[i].Name, "ports", strconv.Itoa(ports[k].Number))
			if ports[k].State, err = readState(dir); err != nil {
				return nil, err
			}
		}
		nics[i].Ports = ports
	}
	return nics, nil
}

// readState reads the word of a port's state: "ACTIVE" of "4: ACTIVE".
func readState(port string) (string, error) {
	text, err := readOptional(filepath.Join(port, "state"))
	if _, word, ok := strings.Cut(text, ": "); ok {
		return word, err
	}
	return text, err
}
