package process

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Traced reports whether a debugger is attached to a process's first thread. The debugger then decides on each signal
// to it but SIGKILL.
func Traced(proc string, pid int) bool { return tracerOf(proc+"/"+strconv.Itoa(pid)) != 0 }

// tracerOf returns the pid of the debugger of a thread with this directory in procfs, 0 without one. Source:
// proc_pid_status(5), TracerPid.
func tracerOf(dir string) int {
	status, err := smallfile.Read(dir+"/status", maxStatus)
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "\nTracerPid:\t")
	line, _, _ := strings.Cut(after, "\n")
	pid, _ := strconv.Atoi(line) // 0 if the line is missing
	return pid
}

// DescribeTracer returns a text that names the debugger of the first of the processes that has one, "" without. A
// debugger that is told of the end of its process (PTRACE_O_TRACEEXIT) keeps a killed process from ending.
func DescribeTracer(proc string, pids []int) string {
	for _, pid := range pids {
		threads := proc + "/" + strconv.Itoa(pid) + "/task/"
		names, err := smallfile.Names(threads)
		if err != nil {
			continue // it has ended
		}
		for _, thread := range names {
			tracer := tracerOf(threads + thread)
			if tracer == 0 {
				continue
			}
			name, err := smallfile.String(proc + "/" + strconv.Itoa(tracer) + "/comm")
			if err != nil {
				continue // it has ended
			}
			return fmt.Sprintf("process %d is traced by process %d (%s): end that", pid, tracer, printable.Line(name))
		}
	}
	return ""
}
