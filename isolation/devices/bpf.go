package devices

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The commands of bpf(2) that are needed, by include/uapi/linux/bpf.h. Addresses
// are kept as pointers, so that what they point to stays in place: machines of 64
// bits alone.

// maxPrograms is the most that the kernel attaches to a cgroup (BPF_CGROUP_MAX_PROGS).
const maxPrograms = 64

// bpfCall retries when a signal interrupted the call: the verifier returns EAGAIN then, and Go sends
// signals to its own threads.
func bpfCall(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	for range 100 {
		r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
		if errno == 0 {
			return int(r), nil
		}
		if errno != unix.EAGAIN && errno != unix.EINTR {
			return -1, errno
		}
	}
	return -1, unix.EAGAIN
}

// loaded is a program in the kernel: a resource, to be closed. Closing doesn't
// detach it.
type loaded struct {
	fd int
	id uint32
	// tag is a hash of the instructions.
	tag  [8]byte
	name string
}

func (l loaded) Close() error { return unix.Close(l.fd) }

// loadProgram loads the program into the kernel under a name that bpftool shows.
func (p Program) loadProgram(name string) (l loaded, err error) {
	licence := []byte("GPL\x00")
	attr := struct {
		kind, count         uint32
		instructions        unsafe.Pointer
		license             unsafe.Pointer
		logLevel, logSize   uint32
		log                 unsafe.Pointer
		kernelVersion, flag uint32
		name                [16]byte
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(p)), //nolint:gosec // the kernel refuses a million
		instructions: unsafe.Pointer(unsafe.SliceData(p)), license: unsafe.Pointer(unsafe.SliceData(licence)),
	}
	copy(attr.name[:15], name)
	fd, err := bpfCall(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return loaded{}, fmt.Errorf("load device program of %d instructions: %w", len(p), err)
	}
	return programOf(fd)
}

// openProgram opens the program with this id; the error Is ErrNotExist if the program is gone.
func openProgram(id uint32) (loaded, error) {
	attr := struct{ id, next, flags uint32 }{id: id}
	fd, err := bpfCall(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return loaded{}, fmt.Errorf("open device program %d: %w", id, err)
	}
	return programOf(fd)
}

// programOf reads the id and tag of the program behind fd. It takes ownership of fd.
func programOf(fd int) (loaded, error) {
	var info struct {
		kind, id uint32
		tag      [8]byte
		_        [48]byte // fields for data that isn't requested: lengths and addresses
		name     [16]byte
	}
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)} //nolint:gosec // a descriptor
	if _, err := bpfCall(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
		return loaded{}, errors.Join(fmt.Errorf("ask for device program: %w", err), unix.Close(fd))
	}
	return loaded{fd, info.id, info.tag, unix.ByteSliceToString(info.name[:])}, nil
}

// queryPrograms lists the programs of just this cgroup, and how they were attached.
func queryPrograms(dir int) (ids []uint32, flags uint32, err error) {
	ids = make([]uint32, maxPrograms)
	attr := struct {
		target, kind, queried, attached uint32
		ids                             unsafe.Pointer
		count, _                        uint32
	}{target: uint32(dir), kind: unix.BPF_CGROUP_DEVICE, ids: unsafe.Pointer(unsafe.SliceData(ids)), count: maxPrograms} //nolint:gosec // a descriptor
	if _, err := bpfCall(unix.BPF_PROG_QUERY, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
		return nil, 0, fmt.Errorf("list device programs: %w", err)
	}
	return ids[:attr.count], attr.attached, nil
}

// attachTo puts the program on the cgroup; with BPF_F_REPLACE in place of the old one,
// in one step.
func (l loaded) attachTo(dir int, flags uint32, old int) error {
	attr := struct{ target, program, kind, flags, old uint32 }{
		uint32(dir), uint32(l.fd), unix.BPF_CGROUP_DEVICE, flags, uint32(old), //nolint:gosec // descriptors
	}
	_, err := bpfCall(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err
}

func (l loaded) detachFrom(dir int) error {
	attr := struct{ target, program, kind uint32 }{uint32(dir), uint32(l.fd), unix.BPF_CGROUP_DEVICE} //nolint:gosec // descriptors
	_, err := bpfCall(unix.BPF_PROG_DETACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err
}

// TryLoad loads a program that denies everything and closes it again. It reports whether
// this kernel has device programs and this process may load them.
func TryLoad() error {
	l, err := Program(returnCode(0)).loadProgram("berth_try")
	if err != nil {
		return err
	}
	return l.Close()
}
