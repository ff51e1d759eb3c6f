// Package topology reads NCCL's topology files, in which the host of a virtual machine, or an
// admin, describes the machine to NCCL.
//
// NCCL's own reader knows a small part of XML. It ignores other input without a message, or ends
// the job with a line that names no file. This reader is as strict, and names the line and the rule
// that it breaks. The rules are those of NCCL 2.30 (src/graph/xml.cc, xml.h and topo.cc).
//
// berth decides nothing by these files and writes none: on real machines NCCL reads /sys, which is
// more accurate.
package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// System is the content of a file.
type System struct {
	CPUs []CPU
}

// CPU is a NUMA node and the PCI devices below it.
type CPU struct {
	NUMA    int
	Devices []Device
}

// Device is a PCI device: a bridge with others below it, a GPU or a NIC.
type Device struct {
	Address string // lower case: "0001:00:00.0"
	Class   string // "0x030200", "" if NCCL has to read it from sysfs
	Devices []Device
}

// Error is the first thing in a file that NCCL would not read.
type Error struct {
	Line   int // from 1
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

func errorAt(line int, format string, values ...any) error {
	return &Error{line, fmt.Sprintf(format, values...)}
}

// maxFile is more than 256 elements of 16 attributes of 255 bytes.
const maxFile = 4 << 20

// Read reads the file at a path of the host's. What NCCL would not read is an [*Error].
func Read(path string) (System, error) {
	data, err := smallfile.Read(path, maxFile)
	if err != nil {
		return System{}, err
	}
	s, err := Parse(data)
	if err != nil {
		return System{}, fmt.Errorf("NCCL's topology %s: %w", path, err)
	}
	return s, nil
}

// Parse reads a file's text.
func Parse(data []byte) (System, error) {
	all, err := parseElements(data)
	if err != nil {
		return System{}, err
	}
	var s System
	found := false
	for _, e := range all {
		if e.name != "system" {
			continue // NCCL ignores it
		}
		if found {
			return System{}, errorAt(e.line, "a second <system>: NCCL takes the first for the machine")
		}
		found = true
		if s, err = checkSystem(e); err != nil {
			return System{}, err
		}
	}
	if !found {
		return System{}, errorAt(1, "there is no <system>")
	}
	return s, nil
}

// checkSystem checks the attributes that NCCL requires of each known element.
func checkSystem(e element) (s System, err error) {
	version, err := e.numberAttribute("version")
	if err != nil {
		return s, err
	}
	if version != 1 {
		return s, errorAt(e.line, "version of <system> is %d: NCCL knows 1 (2 is RCCL's)", version)
	}
	for _, c := range e.elements {
		if c.name != "cpu" {
			continue
		}
		cpu := CPU{}
		if cpu.NUMA, err = c.numberAttribute("numaid"); err != nil {
			return s, err
		}
		if cpu.Devices, err = checkDevices(c); err != nil {
			return s, err
		}
		s.CPUs = append(s.CPUs, cpu)
	}
	if len(s.CPUs) == 0 {
		return s, errorAt(e.line, "<system> has no <cpu>")
	}
	return s, nil
}

func checkDevices(e element) (all []Device, err error) {
	for _, c := range e.elements {
		switch c.name {
		case "pci":
			d, err := checkDevice(c)
			if err != nil {
				return nil, err
			}
			all = append(all, d)
		case "gpu":
			err = checkLinks(c)
		case "nic":
			err = checkNets(c)
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// checkDevice checks a PCI device. NCCL fills in class and link of GPUs, of NICs and of the bridges above them from
// sysfs (ncclTopoGetXmlFromSys), writes "" for a link that isn't there, and drops what has neither GPU nor NIC below it.
// Only a bridge that exists in the file alone needs its class.
func checkDevice(e element) (d Device, err error) {
	address, ok := e.attributes["busid"]
	if !ok {
		return d, errorAt(e.line, "<pci> has no busid")
	}
	d = Device{Address: strings.ToLower(address), Class: e.attributes["class"]}
	if !isAddress(d.Address) {
		return d, errorAt(e.line, "busid %q of <pci> is no PCI address like 0001:00:00.0", address)
	}
	isBridge := slices.ContainsFunc(e.elements, func(below element) bool { return below.name == "pci" })
	if d.Class == "" && isBridge && strings.HasPrefix(d.Address, virtualBus) {
		return d, errorAt(e.line, "<pci> has no class, and no machine has a device %s from which NCCL could read it", d.Address)
	}
	if width := e.attributes["link_width"]; width != "" {
		if _, err = e.numberAttribute("link_width"); err != nil {
			return d, err
		}
	}
	d.Devices, err = checkDevices(e)
	return d, err
}

func checkLinks(e element) error {
	for _, name := range []string{"dev", "sm", "rank", "gdr"} {
		if _, ok := e.attributes[name]; ok {
			if _, err := e.numberAttribute(name); err != nil {
				return err
			}
		}
	}
	for _, l := range e.elements {
		if l.name != "nvlink" {
			continue
		}
		for _, name := range []string{"target", "tclass"} {
			if _, ok := l.attributes[name]; !ok {
				return errorAt(l.line, "<nvlink> has no %s", name)
			}
		}
		if _, err := l.numberAttribute("count"); err != nil {
			return err
		}
	}
	return nil
}

func checkNets(e element) error {
	for _, n := range e.elements {
		if n.name != "net" {
			continue
		}
		for _, name := range []string{"dev", "speed", "port", "maxconn", "gdr"} {
			if _, ok := n.attributes[name]; ok {
				if _, err := n.numberAttribute(name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// numberAttribute returns a required attribute. A value that isn't a number is an error, because
// NCCL would read it as 0.
func (e element) numberAttribute(name string) (int, error) {
	text, ok := e.attributes[name]
	if !ok {
		return 0, errorAt(e.line, "<%s> has no %s", e.name, name)
	}
	n, err := strconv.ParseInt(text, 0, 32)
	if err != nil {
		return 0, errorAt(e.line, "%s of <%s> is no number: %q", name, e.name, text)
	}
	return int(n), nil
}

// virtualBus begins the addresses of bridges that exist in files alone: no PCI domain of firmware has this bus.
const virtualBus = "ffff:ff:"

// isAddress reports whether s is a PCI address, also one that a virtual machine has made up:
// "ffff:ff:01.0".
func isAddress(s string) bool {
	domain, rest, _ := strings.Cut(s, ":")
	bus, rest, _ := strings.Cut(rest, ":")
	slot, function, _ := strings.Cut(rest, ".")
	return isHex(domain, 4, 8) && isHex(bus, 2, 2) && isHex(slot, 2, 2) && isHex(function, 1, 1)
}

func isHex(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && strings.Trim(s, "0123456789abcdef") == ""
}
