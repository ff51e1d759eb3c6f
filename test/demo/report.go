package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// control are the nodes that every holder of a GPU shares; no memory of another
// task is behind them.
var control = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}

// count is what one task could open.
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

// report prints the table and the verdict; an error means that a promise was broken.
func report(w io.Writer, kind string, gpus []device, tasks []task) error {
	minors := map[string]int{}
	for _, g := range gpus {
		minors[g.UUID] = g.Minor
	}
	var wrong []string
	var tried int
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "TASK\tGPU\tWAITED\tRAN\tOWN OPENED\tFOREIGN OPENED\tMKNOD\tLIBCUDA")
	for _, t := range tasks {
		if t.err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", t.name, t.err))
			continue
		}
		minor, known := minors[t.seen.Devices]
		c := judge(t, minor)
		tried += c.tried
		fmt.Fprintf(tw, "%s\t%s\t%.2fs\t%.2fs\t%d\t%d of %d\t%s\t%s\n", t.name, t.seen.Devices,
			t.seen.Start-float64(t.launched.UnixMicro())/1e6, t.seen.End-t.seen.Start, c.own, c.foreign, c.tried, t.seen.Mknod, t.seen.Libcuda)
		switch {
		case !known:
			wrong = append(wrong, t.name+": has no GPU of this node")
		case c.own != 1 || c.foreign != 0:
			wrong = append(wrong, fmt.Sprintf("%s: opened %d of its own and %d foreign devices", t.name, c.own, c.foreign))
		case t.seen.Mknod != "EPERM":
			wrong = append(wrong, t.name+": mknod answered "+t.seen.Mknod)
		case t.seen.Libcuda == "":
			wrong = append(wrong, t.name+": "+t.seen.DlopenError)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	wrong = append(wrong, overlaps(tasks)...)
	if len(wrong) > 0 {
		return fmt.Errorf("a promise was broken:\n  %s", strings.Join(wrong, "\n  "))
	}
	fmt.Fprintf(w, "\n%d containers shared %d %s GPUs (%s): each opened its own, none of %d tries on foreign nodes got through, and no GPU had two holders at a time.\n",
		len(tasks), len(gpus), kind, gpus[0].Model, tried)
	return nil
}

// overlaps finds two tasks that had one GPU at the same time, by their own clocks.
func overlaps(tasks []task) []string {
	var found []string
	for i, a := range tasks {
		for _, b := range tasks[i+1:] {
			if a.err == nil && b.err == nil && a.seen.Devices == b.seen.Devices && a.seen.Start < b.seen.End && b.seen.Start < a.seen.End {
				found = append(found, fmt.Sprintf("%s and %s had %s at the same time", a.name, b.name, a.seen.Devices))
			}
		}
	}
	return found
}
