package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// control are the nodes that all holders of GPUs share; they give no access to another task's
// memory.
var control = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// count has the numbers of nodes that one task could open.
type count struct{ own, foreign, tried int }

// judge sorts the nodes that a task tried: its own GPU, the control nodes, and
// everything else, which is foreign.
func judge(t task, minor int) count {
	var c count
	for _, n := range t.seen.Nodes {
		switch {
		case slices.Contains(control, n.Node):
		case n.Node == fmt.Sprintf("/dev/nvidia%d", minor):
			if n.Allowed {
				c.own++
			}
		default:
			c.tried++
			if n.Allowed {
				c.foreign++
			}
		}
	}
	return c
}

// report prints the table and the verdict. The error says which promise was broken.
func report(w io.Writer, kind string, gpus []device, tasks []task) error {
	var tried int
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TASK\tGPU\tWAITED\tRAN\tOWN OPENED\tFOREIGN OPENED\tMKNOD\tLIBCUDA")
	for _, t := range tasks {
		if t.err != nil {
			continue
		}
		c := judge(t, minorOf(gpus, t.seen.Devices))
		tried += c.tried
		fmt.Fprintf(tw, "%s\t%s\t%.2fs\t%.2fs\t%d\t%d of %d\t%s\t%s\n", t.name, t.seen.Devices,
			t.seen.Start-float64(t.launched.UnixMicro())/1e6, t.seen.End-t.seen.Start, c.own, c.foreign, c.tried, t.seen.Mknod, t.seen.Libcuda)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if wrong := brokenPromises(gpus, tasks); len(wrong) > 0 {
		return fmt.Errorf("a promise was broken:\n  %s", strings.Join(wrong, "\n  "))
	}
	fmt.Fprintf(w, "\n%d containers shared %d %s GPUs (%s): each opened its own, none of %d tries on foreign nodes got through, and no GPU had two holders at a time.\n",
		len(tasks), len(gpus), kind, gpus[0].Model, tried)
	return nil
}

// brokenPromises returns the promises that were broken, or not shown to be kept. It is pure.
func brokenPromises(gpus []device, tasks []task) (wrong []string) {
	if len(tasks) == 0 {
		return []string{"no task ran"}
	}
	for _, t := range tasks {
		if what := findFault(gpus, t); what != "" {
			wrong = append(wrong, t.name+": "+what)
		}
	}
	return append(wrong, findOverlap(tasks)...)
}

// findFault returns the first fault of one task, "" if there is none.
func findFault(gpus []device, t task) string {
	if t.err != nil {
		return t.err.Error()
	}
	minor := minorOf(gpus, t.seen.Devices)
	c := judge(t, minor)
	switch {
	case minor < 0:
		return fmt.Sprintf("has no GPU of this node, but %q", t.seen.Devices)
	case c.own != 1 || c.foreign != 0:
		return fmt.Sprintf("opened %d of its own and %d foreign devices", c.own, c.foreign)
	case findUntriedNode(gpus, t) != "":
		return "didn't try to open " + findUntriedNode(gpus, t)
	case t.seen.Mknod != "EPERM":
		return "mknod answered " + t.seen.Mknod
	case t.seen.Libcuda == "":
		return t.seen.DlopenError
	case !slices.ContainsFunc(injected, func(dir string) bool { return strings.HasPrefix(t.seen.Libcuda, dir) }):
		return "loaded " + t.seen.Libcuda + ", which is not the driver's"
	case t.seen.Start <= 0 || t.seen.End < t.seen.Start:
		return "doesn't say when it ran"
	}
	return ""
}

// injected are the directories that the driver's files can be in.
var injected = []string{"/usr/local/nvidia/", "/usr/local/berth/nvidia/"}

// minorOf is negative if the node has no such GPU.
func minorOf(gpus []device, uuid string) int {
	for _, g := range gpus {
		if g.UUID == uuid {
			return g.Minor
		}
	}
	return -1
}

// findUntriedNode returns the node of a GPU that the task never tried: device rules for it weren't tested.
func findUntriedNode(gpus []device, t task) string {
	for _, g := range gpus {
		path := fmt.Sprintf("/dev/nvidia%d", g.Minor)
		if !slices.ContainsFunc(t.seen.Nodes, func(n node) bool { return n.Node == path }) {
			return path
		}
	}
	return ""
}

// findOverlap finds two tasks that had one GPU at the same time, by their own clocks.
func findOverlap(tasks []task) (found []string) {
	for i, a := range tasks {
		for _, b := range tasks[i+1:] {
			if a.err == nil && b.err == nil && a.seen.Devices == b.seen.Devices && a.seen.Start < b.seen.End && b.seen.Start < a.seen.End {
				found = append(found, fmt.Sprintf("%s and %s had %s at the same time", a.name, b.name, a.seen.Devices))
			}
		}
	}
	return found
}
