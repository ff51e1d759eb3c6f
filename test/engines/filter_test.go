package engines

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// A task may make no system call that docker's default refuses, with intended exceptions. The
// filters in force are read from the kernel, and each call is evaluated in both: nothing depends on
// the text of profiles or on libraries.
func TestFilterIsNoWeaker(t *testing.T) {
	eachOf(t, map[string][]engine{"forky": {docker()}}, []string{"crun"}, func(t *testing.T, p place) {
		if p.cgroup == "v2" {
			return // is independent of that
		}
		c := p.start(t, containerOptions{})
		container := onlyProbe(t, nil)
		theirs, mayTheirs := filtersOf(t, container), bounding(t, container)
		before := probes(t)
		task := p.command(shared.Berth, "run", "--interactive", "--network", "none", image, "/probe")
		in, err := task.StdinPipe()
		rig.Must(t, err)
		out, err := task.StdoutPipe()
		rig.Must(t, err)
		rig.Must(t, task.Start())
		_, err = in.Write([]byte("open /\n"))
		rig.Must(t, err)
		_, err = out.Read(make([]byte, 64)) // it runs
		rig.Must(t, err)
		inside := onlyProbe(t, before)
		ours, mayOurs := filtersOf(t, inside), bounding(t, inside)
		rig.Must(t, in.Close())
		rig.Must(t, task.Wait())
		c.end()
		compare(t, ours, theirs)
		if want := mayTheirs &^ (1 << unix.CAP_MKNOD); mayOurs != want {
			t.Errorf("a task's capabilities are %#x, a container's %#x, want %#x", mayOurs, mayTheirs, want)
		}
	})
}

// intendedCalls are the intended exceptions: calls that a task may make and docker's containers may not;
// see docs/reference/flags.md.
func intendedCalls() []int {
	return []int{unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_GET_MEMPOLICY, unix.SYS_PIDFD_GETFD}
}

// newerCalls are calls that docker's profile allows only in newer versions than the engines here, or
// that their libseccomp doesn't know.
func newerCalls(call int) bool { return call >= unix.SYS_CACHESTAT }

func compare(t *testing.T, ours, theirs []filter) {
	t.Helper()
	var weaker []string
	stronger := map[int]bool{}
	for call := range 512 {
		for _, arg := range []uint64{0, 17, unix.AF_ALG, unix.AF_VSOCK, unix.CLONE_NEWUTS, unix.CLONE_NEWUSER, 0x1234, 0xffffffff} {
			a, b := allows(t, ours, call, arg), allows(t, theirs, call, arg)
			switch {
			case a && !b && !slices.Contains(intendedCalls(), call) && !newerCalls(call):
				weaker = append(weaker, fmt.Sprintf("%d(%#x)", call, arg))
			case b && !a:
				stronger[call] = true
			}
		}
	}
	if len(weaker) > 0 {
		t.Errorf("a task may call what a container of the engine may not: %v", weaker)
	}
	// Docker's own profile has closed AF_ALG since, too.
	if want := map[int]bool{unix.SYS_SOCKET: true}; !maps.Equal(stronger, want) {
		t.Errorf("a task may not call what a container of the engine may: %v, want %v", stronger, want)
	}
}

// probes returns the processes of containers.
func probes(t *testing.T) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/comm")
	rig.Must(t, err)
	for _, path := range all {
		name, err := os.ReadFile(path)
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		if err == nil && string(name) == "probe\n" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// bounding returns the capabilities that a process can gain at most.
func bounding(t *testing.T, pid int) (mask uint64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	rig.Must(t, err)
	_, text, _ := strings.Cut(string(status), "CapBnd:\t")
	_, err = fmt.Sscanf(text, "%x", &mask)
	rig.Must(t, err)
	return mask
}

func onlyProbe(t *testing.T, before []int) int {
	t.Helper()
	now := slices.DeleteFunc(probes(t), func(pid int) bool { return slices.Contains(before, pid) })
	if len(now) != 1 {
		t.Fatalf("%d containers run: %v", len(now), now)
	}
	return now[0]
}

// filter is a program of classic BPF, as linux/filter.h has it.
type filter []instruction

type instruction struct {
	op     uint16
	jt, jf uint8
	k      uint32
}

// getFilter is PTRACE_SECCOMP_GET_FILTER of linux/ptrace.h.
const getFilter = 0x420c

// filtersOf reads a process's filters from the kernel.
func filtersOf(t *testing.T, pid int) (all []filter) {
	t.Helper()
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	rig.Must(t, unix.PtraceSeize(pid))
	defer func() { rig.Must(t, unix.PtraceDetach(pid)) }()
	rig.Must(t, unix.PtraceInterrupt(pid))
	_, err := unix.Wait4(pid, nil, unix.WALL, nil)
	rig.Must(t, err)
	for {
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, getFilter, uintptr(pid), uintptr(len(all)), 0, 0, 0)
		if errno == unix.ENOENT && len(all) > 0 {
			return all
		}
		if errno != 0 {
			t.Fatalf("ask for filter %d of %d: %v", len(all), pid, errno)
		}
		raw := make([]byte, 8*n)
		_, _, errno = unix.Syscall6(unix.SYS_PTRACE, getFilter, uintptr(pid), uintptr(len(all)), uintptr(unsafe.Pointer(&raw[0])), 0, 0)
		if errno != 0 {
			t.Fatalf("read filter %d of %d: %v", len(all), pid, errno)
		}
		f := make(filter, n)
		for i := range f {
			b := raw[8*i:]
			f[i] = instruction{binary.LittleEndian.Uint16(b), b[2], b[3], binary.LittleEndian.Uint32(b[4:])}
		}
		all = append(all, f)
	}
}

// allows reports whether every filter allows the call.
func allows(t *testing.T, all []filter, call int, arg uint64) bool {
	t.Helper()
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	words := map[uint32]uint32{0: uint32(call), 4: arch, 16: uint32(arg), 20: uint32(arg >> 32)}
	return !slices.ContainsFunc(all, func(f filter) bool { return f.run(t, words) != unix.SECCOMP_RET_ALLOW })
}

func (f filter) run(t *testing.T, words map[uint32]uint32) uint32 {
	t.Helper()
	a := uint32(0)
	for at := 0; at < len(f); at++ {
		i := f[at]
		holds := map[uint16]bool{
			unix.BPF_JMP | unix.BPF_JEQ: a == i.k, unix.BPF_JMP | unix.BPF_JGE: a >= i.k,
			unix.BPF_JMP | unix.BPF_JGT: a > i.k, unix.BPF_JMP | unix.BPF_JSET: a&i.k != 0,
		}
		condition, isJump := holds[i.op]
		switch {
		case isJump && condition:
			at += int(i.jt)
		case isJump:
			at += int(i.jf)
		case i.op == unix.BPF_LD|unix.BPF_W|unix.BPF_ABS:
			a = words[i.k]
		case i.op == unix.BPF_ALU|unix.BPF_AND|unix.BPF_K:
			a &= i.k
		case i.op == unix.BPF_JMP|unix.BPF_JA:
			at += int(i.k)
		case i.op == unix.BPF_RET|unix.BPF_K:
			return i.k & unix.SECCOMP_RET_ACTION_FULL
		default:
			t.Fatalf("operation %#x", i.op)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}
