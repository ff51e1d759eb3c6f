// Package seccomp builds the system call filters of containers: the default filter, docker's profiles,
// and the filter of unconfined containers.
//
// Every filter refuses the calls that would lift device isolation: loading BPF programs and kernel
// modules, raw I/O ports, watching whole file systems, and opening files by handle. Other calls are
// refused with some arguments (restrictArguments).
package seccomp

import (
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/callrules"
	"github.com/berth-gpu/berth/internal/projectquota"
)

// Filter is the system call filter of a container.
type Filter struct {
	Calls *specs.LinuxSeccomp
	// Annotations have the same filter in compiled form, for runtimes that support it.
	Annotations map[string]string
}

// Default returns the default filter of containers whose root has these capabilities, "CAP_…".
func Default(caps []string) *Filter {
	return newFilter(restrictArguments(defaultCalls(caps), caps, namespaceRequests(caps)))
}

// DefaultInProject is Default for containers with a project quota (internal/projectquota), which must
// not move files out of their project.
func DefaultInProject(caps []string) *Filter {
	return newFilter(restrictArguments(defaultCalls(caps), caps, append(projectRequests(), namespaceRequests(caps)...)))
}

func newFilter(calls *specs.LinuxSeccomp) *Filter {
	return &Filter{Calls: calls, Annotations: annotate(calls, runtime.GOARCH)}
}

// Unconfined returns the filter of containers without one, whose root has these capabilities. It refuses
// only what every filter refuses.
func Unconfined(caps []string) *Filter {
	eperm := uint(unix.EPERM)
	return &Filter{Calls: restrictArguments(&specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Architectures: allArchitectures(),
		Syscalls:      []specs.LinuxSyscall{{Names: strings.Fields(neverAllowed), Action: specs.ActErrno, ErrnoRet: &eperm}},
	}, caps, namespaceRequests([]string{capSysAdmin}))}
}

// neverAllowed are the calls that every filter refuses. They change the kernel, detach device rules from
// cgroups, open the host's files by handle, or make calls of restrictArguments that a filter can't see
// (io_uring, and socketcall of 32-bit programs for kernels before Linux 4.3). fanotify_init is among
// them because the events of a file system, such as cgroupfs, contain descriptors of its files: a
// directory above the container's own cgroup leads to the host's root.
const neverAllowed = `bpf create_module delete_module fanotify_init finit_module init_module io_uring_setup ioperm iopl
kexec_file_load kexec_load open_by_handle_at socketcall`

// allowed are the calls that need no capability. Runtimes skip those that their libseccomp doesn't know.
// Two groups go beyond docker's profile. NUMA memory policy (mbind, set_mempolicy, get_mempolicy) acts on
// the caller's memory only and is used by NCCL's host allocations. pidfd_getfd needs the same permission
// as ptrace.
const allowed = `
_llseek _newselect accept accept4 access adjtimex alarm bind brk cachestat capget
capset chdir chmod chown chown32 clock_adjtime clock_adjtime64 clock_getres
clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2
dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2
epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group
faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod
fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr
flistxattr flock fork fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs
fstatfs64 fsync ftruncate ftruncate64 futex futex_requeue futex_time64 futex_wait
futex_waitv futex_wake futimesat get_mempolicy get_robust_list get_thread_area
getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid
getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid
getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32
getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid
getuid32 getxattr getxattrat inotify_add_watch inotify_init inotify_init1
inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents
io_pgetevents_time64 io_setup io_submit ioctl ioprio_get ioprio_set ipc kill
landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32
lgetxattr link linkat listen listmount listxattr listxattrat llistxattr
lremovexattr lseek lsetxattr lstat lstat64 madvise map_shadow_stack mbind
membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock
mlock2 mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open
mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink
mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_getfd
pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll
ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_mrelease
process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64
pwritev pwritev2 read readahead readlink readlinkat readv recv recvfrom recvmmsg
recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat rename
renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64
sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield
seccomp select semctl semget semop semtimedop semtimedop_time64 send sendfile
sendfile64 sendmmsg sendmsg sendto set_mempolicy set_robust_list set_thread_area
set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups
setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid
setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt
setuid setuid32 setxattr setxattrat shmat shmctl shmdt shmget shutdown
sigaltstack signalfd signalfd4 sigprocmask sigreturn socketpair splice
stat stat64 statfs statfs64 statmount statx symlink symlinkat sync
sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete
timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64
timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime
timerfd_settime64 times tkill truncate truncate64 ugetrlimit umask uname unlink
unlinkat utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid
waitpid write writev`

// refused are the calls that fail with EPERM, as with docker. A call in neither list fails with ENOSYS,
// so that programs fall back as on an older kernel.
const refused = `
acct add_key bpf clock_settime clock_settime64 create_module delete_module
fanotify_init finit_module fsconfig fsmount fsopen fspick init_module ioperm iopl
kcmp kexec_file_load kexec_load keyctl lookup_dcookie migrate_pages mount
mount_setattr move_mount move_pages nfsservctl open_by_handle_at open_tree
perf_event_open pivot_root process_madvise quotactl quotactl_fd reboot
request_key set_mempolicy_home_node setdomainname sethostname setns settimeofday
stime swapoff swapon syslog umount umount2 unshare uselib userfaultfd vhangup`

// namespaceFlags are the CLONE_NEW* bits that clone takes.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// allowFamilies returns rules that allow sockets of the address families below 64, except AF_ALG (38)
// and AF_VSOCK (40). The masks cover only the lower half of the argument, as the kernel reads it: bits of
// the upper half must not disguise a family.
func allowFamilies() (rules []specs.LinuxSyscall) {
	for _, f := range []struct{ mask, value uint64 }{
		{0xffffffe0, 0},
		{0xfffffffc, 32},
		{0xfffffffe, 36},
		{0xffffffff, 39},
		{0xffffffff, 41},
		{0xfffffffe, 42},
		{0xfffffffc, 44},
		{0xfffffff0, 48},
	} {
		rules = append(rules, allowIf("socket", specs.LinuxSeccompArg{Value: f.mask, ValueTwo: f.value, Op: specs.OpMaskedEqual}))
	}
	return rules
}

// Socket options of include/uapi/asm-generic/socket.h, since Linux 6.5. x/sys/unix doesn't have them for
// all processors.
const (
	passPIDFD = 76 // SO_PASSPIDFD: messages contain a pidfd of their sender
	peerPIDFD = 77 // SO_PEERPIDFD: a pidfd of the process at the other end
)

// restrictArguments makes a filter refuse these calls with some arguments:
//   - Socket options that return a pidfd of the process at the other end of a UNIX socket, with the error
//     of kernels without these options. In the host's network namespace that may be any process of the
//     host. With CAP_SYS_ADMIN, a pidfd gives access to the process's namespaces (setns), and so a way
//     out of the outer cgroup, and to its open devices (pidfd_getfd). Options of other protocols with the
//     same numbers are refused too.
//   - Leases and delegations of files (fcntl F_SETLEASE, F_SETDELEG). The container's root has the uid of
//     the host's root and could take a lease on any of its files in a read-only bind mount. The next open
//     of the file by any process would then wait for fs.lease-break-time (45 s).
//   - perf_event_open for all processes on a CPU (a negative pid) or in a cgroup (PERF_FLAG_PID_CGROUP):
//     samples contain the memory of other containers.
//   - ptrace with PTRACE_O_TRACEEXIT, without CAP_SYS_PTRACE (callrules.RefuseExitTracing).
//   - The given requests of ioctl.
func restrictArguments(calls *specs.LinuxSeccomp, caps []string, requests []uint32) *specs.LinuxSeccomp {
	const bits = 16                 // options and commands are smaller
	const setDelegation = 1024 + 16 // F_SETDELEG of include/uapi/linux/fcntl.h, since Linux 6.19
	callrules.RestrictCall(calls, "setsockopt", unix.ENOPROTOOPT, callrules.ArgumentIn(2, callrules.RangesWithout([]uint32{passPIDFD}, 0, bits)), callrules.ArgumentIn(2, callrules.SingleValues(passPIDFD)))
	callrules.RestrictCall(calls, "getsockopt", unix.ENOPROTOOPT, callrules.ArgumentIn(2, callrules.RangesWithout([]uint32{peerPIDFD}, 0, bits)), callrules.ArgumentIn(2, callrules.SingleValues(peerPIDFD)))
	leases := []uint32{unix.F_SETLEASE, setDelegation}
	for _, name := range []string{"fcntl", "fcntl64"} {
		callrules.RestrictCall(calls, name, unix.EPERM, callrules.ArgumentIn(1, callrules.RangesWithout(leases, 0, bits)), callrules.ArgumentIn(1, callrules.SingleValues(leases...)))
	}
	const pid, sign, flags, cgroup = 1, 1 << 31, 4, unix.PERF_FLAG_PID_CGROUP
	own := slices.Concat(callrules.ArgumentIn(pid, []callrules.MaskedRange{{Mask: sign}})[0], callrules.ArgumentIn(flags, []callrules.MaskedRange{{Mask: cgroup}})[0])
	others := append(callrules.ArgumentIn(pid, []callrules.MaskedRange{{Mask: sign, Value: sign}}), callrules.ArgumentIn(flags, []callrules.MaskedRange{{Mask: cgroup, Value: cgroup}})...)
	callrules.RestrictCall(calls, "perf_event_open", unix.EPERM, []callrules.Conditions{own}, others)
	if !slices.Contains(caps, capSysPtrace) {
		callrules.RefuseExitTracing(calls)
	}
	if len(requests) > 0 {
		callrules.RestrictCall(calls, "ioctl", unix.EPERM, callrules.ArgumentIn(1, callrules.RangesWithout(requests, 0, 32)), callrules.ArgumentIn(1, callrules.SingleValues(requests...)))
	}
	return calls
}

// restrictedCalls returns the calls of restrictArguments for a container with these capabilities.
func restrictedCalls(caps []string) []string {
	held := []string{"setsockopt", "getsockopt", "fcntl", "fcntl64", "perf_event_open"}
	if !slices.Contains(caps, capSysPtrace) {
		held = append(held, "ptrace")
	}
	if len(namespaceRequests(caps)) > 0 {
		held = append(held, "ioctl")
	}
	return held
}

// capSysAdmin is the capability that is needed to enter namespaces, capSysPtrace that to trace any process.
const (
	capSysAdmin  = "CAP_SYS_ADMIN"
	capSysPtrace = "CAP_SYS_PTRACE"
)

// Requests of ioctl that open the next or the previous mount namespace of the machine, since Linux 6.12.
// Source: include/uapi/linux/nsfs.h.
const (
	nextMountNamespace     = 0x8010b70b // NS_MNT_GET_NEXT
	previousMountNamespace = 0x8010b70c // NS_MNT_GET_PREV
)

// namespaceRequests returns the ioctls that open other mount namespaces; none without CAP_SYS_ADMIN,
// which the kernel requires for them. A filter without conditions for ioctl is faster: the kernel caches
// its result.
func namespaceRequests(caps []string) []uint32 {
	if !slices.Contains(caps, capSysAdmin) {
		return nil
	}
	return []uint32{nextMountNamespace, previousMountNamespace}
}

// projectRequests returns the ioctls that change a file's project, or whether new files of a directory
// inherit its project. The system call file_setattr is in no list, so it is refused.
func projectRequests() []uint32 {
	return []uint32{projectquota.SetAttributes, projectquota.SetFlags}
}

// callsOfCapability returns the calls that a capability allows: docker's, without those of neverAllowed.
func callsOfCapability(capability string) string {
	switch capability {
	case capSysAdmin:
		return "clone clone3 fsconfig fsmount fsopen fspick lookup_dcookie lsm_get_self_attr " +
			"lsm_list_modules lsm_set_self_attr mount mount_setattr move_mount open_tree perf_event_open quotactl " +
			"quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare"
	case "CAP_SYS_CHROOT":
		return "chroot"
	case "CAP_SYS_PACCT":
		return "acct"
	case capSysPtrace:
		return "kcmp process_madvise"
	case "CAP_SYS_TIME":
		return "clock_settime clock_settime64 settimeofday stime"
	case "CAP_SYS_TTY_CONFIG":
		return "vhangup"
	case "CAP_SYS_NICE":
		return "set_mempolicy_home_node"
	case "CAP_SYSLOG":
		return "syslog"
	case "CAP_PERFMON":
		return "perf_event_open"
	}
	return ""
}

// defaultCalls returns the rules of the default filter.
func defaultCalls(caps []string) *specs.LinuxSeccomp {
	enosys, eperm := uint(unix.ENOSYS), uint(unix.EPERM)
	free, denied := strings.Fields(allowed), strings.Fields(refused)
	for _, c := range caps {
		free = append(free, strings.Fields(callsOfCapability(c))...)
	}
	if len(caps) > 0 {
		more := map[string]bool{}
		for _, name := range free[len(strings.Fields(allowed)):] {
			more[name] = true
		}
		denied = slices.DeleteFunc(denied, func(name string) bool { return more[name] })
	}
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, DefaultErrnoRet: &enosys}
	p.Architectures, free = addNative(free)
	p.Syscalls = []specs.LinuxSyscall{
		{Names: free, Action: specs.ActAllow},
		{Names: denied, Action: specs.ActErrno, ErrnoRet: &eperm},
	}
	if !slices.Contains(caps, capSysAdmin) {
		p.Syscalls = append(p.Syscalls,
			// A filter can't see the flags of clone3. Libraries fall back to clone.
			specs.LinuxSyscall{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &enosys},
			allowIf("clone", specs.LinuxSeccompArg{Value: namespaceFlags, Op: specs.OpMaskedEqual}))
	}
	p.Syscalls = append(p.Syscalls, allowFamilies()...)
	// Linux, 32-bit Linux, both also without address space randomisation, and the query.
	for _, persona := range []uint64{0, 0x8, 0x20000, 0x20008, 0xffffffff} {
		p.Syscalls = append(p.Syscalls, allowIf("personality", specs.LinuxSeccompArg{Value: persona, Op: specs.OpEqualTo}))
	}
	return p
}

func allowIf(name string, arg specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg}}
}

// addNative adds the calls that only this processor has, and returns the processor's native system call
// table. Programs that use another table, such as 32-bit ones, are killed: each further table costs 6 ms
// in libseccomp at each start, and widens the kernel's attack surface.
func addNative(names []string) ([]specs.Arch, []string) {
	switch runtime.GOARCH {
	case "amd64":
		return []specs.Arch{specs.ArchX86_64}, append(names, "arch_prctl", "modify_ldt", "uretprobe")
	case "arm64":
		return []specs.Arch{specs.ArchAARCH64}, append(names, "sync_file_range2")
	}
	return nil, names
}

// allArchitectures returns all system call tables of this processor's kernel.
func allArchitectures() []specs.Arch {
	switch runtime.GOARCH {
	case "amd64":
		return []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}
	case "arm64":
		return []specs.Arch{specs.ArchAARCH64, specs.ArchARM}
	}
	return nil
}
