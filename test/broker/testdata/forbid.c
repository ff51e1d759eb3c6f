// forbid HOW COMMAND... runs a command on a machine that forbids user namespaces in one of these ways:
//
//   limit       the kernel's own: user.max_user_namespaces is 0, in a user namespace that maps all users to themselves
//   clone       making one fails with EPERM, as with kernel.unprivileged_userns_clone=0 or under an engine's system call filter
//   profile     making one fails with EACCES, as with AppArmor where it moves no program to another profile
//   capability  root of one has no capabilities, as with AppArmor where it does
//   mount       root of one may not mount, as with AppArmor's profile of docker
//
// All but the first answer system calls as such a kernel does. The kernel of the tests has no AppArmor.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int ok, const char *what) {
	if (!ok) {
		perror(what);
		exit(99);
	}
}

static void put(const char *path, const char *text) {
	int fd = open(path, O_WRONLY);
	check(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
	close(fd);
}

// filter answers a system call with an error if bits are set in its first argument, or it is equal to them.
static void filter(int call, int error, int jump, unsigned bits) {
	struct sock_filter lines[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | jump | BPF_K, bits, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
	check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
	check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "filter");
}

// limit enters a user namespace of all users in which none can be made, and returns in the child.
static void limit(void) {
	int made[2], mapped[2], status;
	char path[64], byte = 0;
	check(pipe(made) == 0 && pipe(mapped) == 0, "pipe");
	pid_t child = fork();
	check(child >= 0, "fork");
	if (child == 0) {
		check(unshare(CLONE_NEWUSER) == 0, "unshare");
		check(write(made[1], &byte, 1) == 1 && read(mapped[0], &byte, 1) == 1, "pipe");
		put("/proc/sys/user/max_user_namespaces", "0");
		return;
	}
	check(read(made[0], &byte, 1) == 1, "pipe");
	snprintf(path, sizeof path, "/proc/%d/uid_map", child);
	put(path, "0 0 4294967295");
	snprintf(path, sizeof path, "/proc/%d/gid_map", child);
	put(path, "0 0 4294967295");
	check(write(mapped[1], &byte, 1) == 1, "pipe");
	check(waitpid(child, &status, 0) == child, "wait");
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
}

int main(int argc, char **argv) {
	const char *how = argc > 2 ? argv[1] : "";
	if (!strcmp(how, "limit"))
		limit();
	else if (!strcmp(how, "clone"))
		filter(SYS_clone, EPERM, BPF_JSET, CLONE_NEWUSER);
	else if (!strcmp(how, "profile"))
		filter(SYS_clone, EACCES, BPF_JSET, CLONE_NEWUSER);
	else if (!strcmp(how, "capability"))
		filter(SYS_prctl, EPERM, BPF_JEQ, PR_CAPBSET_DROP);
	else if (!strcmp(how, "mount"))
		filter(SYS_mount, EACCES, BPF_JGE, 0);
	else
		return 99;
	execvp(argv[2], argv + 2);
	check(0, argv[2]);
}
