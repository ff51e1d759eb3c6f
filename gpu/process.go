package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// Process is a process that computes on a device without a lease of it.
type Process struct {
	PID int `json:"pid"`
	// Start is when it started, in clock ticks since boot: a pid alone can be reused. It is 0 if the process was stuck, so that this couldn't be
	// read.
	Start uint64 `json:"start"`
	// Name is chosen by the process itself. It can hold anything.
	Name string `json:"name"`
	// User is the name of its user, or the number where there is none.
	User string `json:"user"`
	// Memory that it holds of the device, in bytes; 0 if unknown.
	Memory uint64 `json:"memory,omitempty"`
	// Device is the number (st_rdev) of the device node that it has open, if that is how it was found; 0 if NVML
	// has reported it.
	Device uint64 `json:"device,omitempty"`
	// Unsearched: not all files that it has open or mapped were searched, mostly because it and others of its user have too many, or because it is stuck.
	// It may have the device open.
	Unsearched bool `json:"unsearched,omitempty"`
}

// String is how the process is shown to people: "python (4711, alice)". A name with control
// characters, or one that could be misread, is quoted.
func (p Process) String() string {
	name := p.Name
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || name == "" || strings.ContainsAny(name, " (),;") {
		name = quoted
	}
	about := ""
	switch {
	case p.Unsearched && p.Start == 0:
		about = ", stuck in a system call, so it can't be searched"
	case p.Unsearched:
		about = ", too many open files to be searched"
	}
	return fmt.Sprintf("%s (%d, %s%s)", name, p.PID, p.User, about)
}

// Occupied is a device that a process without a lease uses.
type Occupied struct {
	Device Device
	// By are the processes; none if they aren't to be shown.
	By []Process
}

// String is one line: "GPU 2 in use by python (4711, alice)". It names the first of many.
func (o Occupied) String() string {
	kind := "GPU"
	if o.Device.Parent != "" {
		kind = "slice"
	}
	by := "a process without a lease"
	if len(o.By) > 0 {
		by = ListProcesses(o.By)
	}
	return kind + " " + o.Device.Index + " in use by " + by
}

// ListProcesses names the first of the processes, and how many more there are.
func ListProcesses(all []Process) string {
	const most = 3
	var names []string
	for _, p := range all[:min(len(all), most)] {
		names = append(names, p.String())
	}
	text := strings.Join(names, ", ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
