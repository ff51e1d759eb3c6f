package process

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Stat is what /proc/PID/stat says of a process. Source: proc_pid_stat(5).
type Stat struct {
	// Start is when the process started, in clock ticks since the host's boot.
	Start uint64
	// Dead means that no thread of the process runs. The first thread alone may end earlier.
	Dead bool
}

// ReadStat reads the state of a process from procfs mounted at proc. readOffset is ReadBootOffset, or returns
// what that returned before. The error Is fs.ErrNotExist if there is no such process, and ErrStuck if the process can't be read.
func ReadStat(proc string, pid int, readOffset func() (BootOffset, error)) (Stat, error) {
	fields, err := readFields(proc, pid)
	if err != nil {
		return Stat{}, err
	}
	s, err := parseStat(fields)
	if err != nil {
		return Stat{}, fmt.Errorf("read %s/%d/stat: %w", proc, pid, err)
	}
	offset, err := readOffset()
	if err == nil {
		s.Start, err = offset.HostTicks(s.Start)
	}
	return s, err
}

func readStat(proc string, pid int) (Stat, error) {
	return ReadStat(proc, pid, func() (BootOffset, error) { return ReadBootOffset(proc) })
}

// maxStat bounds /proc/PID/stat, in bytes.
const maxStat = 4 << 10

// Indexes in the result of readFields: the numbers of proc_pid_stat(5) less 3.
const (
	stateField    = 0
	parentField   = 1
	flagsField    = 6
	threadsField  = 17
	startField    = 19
	codeField     = 23 // where the code begins, then where it ends
	stackField    = 25 // where the stack begins
	exitCodeField = 49
)

// readFields reads the fields of /proc/PID/stat that follow the program's name. The error Is
// fs.ErrNotExist if there is no such process, and ErrStuck if it can't be read.
func readFields(proc string, pid int) ([]string, error) {
	path := proc + "/" + strconv.Itoa(pid) + "/stat"
	data, err := readBounded(proc, pid, func() ([]byte, error) { return smallfile.Read(path, maxStat) })
	if errors.Is(err, unix.ESRCH) { // the process ended after the file was opened
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return splitStat(string(data)), err
}

// splitStat returns the fields after the program's name, which can hold anything, ")" too.
func splitStat(stat string) []string {
	return strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
}

func parseStat(fields []string) (s Stat, err error) {
	if len(fields) <= startField {
		return Stat{}, errors.New("too few fields")
	}
	// A process whose first thread has ended looks like a zombie while its other threads run.
	s.Dead = isZombie(fields[stateField]) && (fields[threadsField] == "0" || fields[threadsField] == "1")
	s.Start, err = strconv.ParseUint(fields[startField], 10, 64)
	return s, err
}

// ProgramID returns the addresses of the code and the stack of the program that a process runs. They
// differ between any two programs that the process executes. It returns "" for a process that has
// ended or is ending.
func ProgramID(proc string, pid int) string {
	fields, err := readFields(proc, pid)
	if err != nil || len(fields) <= stackField || fields[codeField] == "0" { // 0: its memory was freed
		return ""
	}
	return strings.Join(fields[codeField:stackField+1], " ")
}

func isZombie(state string) bool { return state == "Z" || state == "X" }

func isStopped(state string) bool { return state == "T" || state == "t" }
