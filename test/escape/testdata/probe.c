/* The program inside the container: it does what it is told, one command a line of
   its standard input, and answers each with one line.

     open PATH               "ok", or the error's name
     mknod PATH MAJOR MINOR  makes a character device
     cat PATH                the first bytes of a file, in one line
     lease PATH              takes a write lease on a file, which holds up who opens it
     breakout v1|v2          mounts the cgroups and takes its own device rules away
     leave v1|v2             mounts the cgroups and moves itself to the top of what it sees
     end                     no answer: not every engine passes the end of the input on

   It is static, so that it runs in any root, and no loader's variable moves it. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *outcome(int failed) { return failed ? strerrorname_np(errno) : "ok"; }

static void answer_open(const char *path) {
	int fd = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	printf("%s\n", outcome(fd < 0));
	if (fd >= 0) close(fd);
}

static void answer_cat(const char *path) {
	char text[4000];
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
	if (n < 0) printf("%s", outcome(1));
	for (ssize_t i = 0; i < n; i++) putchar(isprint((unsigned char)text[i]) ? text[i] : ' ');
	printf("\n");
	if (fd >= 0) close(fd);
}

static long bpf(int cmd, union bpf_attr *attr) { return syscall(SYS_bpf, cmd, attr, sizeof *attr); }

/* detach takes every device program off the cgroup. */
static int detach(const char *dir) {
	unsigned ids[16] = {0};
	int cgroup = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	union bpf_attr a;
	memset(&a, 0, sizeof a);
	a.query.target_fd = cgroup;
	a.query.attach_type = BPF_CGROUP_DEVICE;
	a.query.prog_ids = (unsigned long)ids;
	a.query.prog_cnt = 16;
	if (cgroup < 0 || bpf(BPF_PROG_QUERY, &a)) return -1;
	for (unsigned i = 0, n = a.query.prog_cnt; i < n; i++) {
		memset(&a, 0, sizeof a);
		a.prog_id = ids[i];
		int prog = bpf(BPF_PROG_GET_FD_BY_ID, &a);
		memset(&a, 0, sizeof a);
		a.target_fd = cgroup;
		a.attach_bpf_fd = prog;
		a.attach_type = BPF_CGROUP_DEVICE;
		if (prog < 0 || bpf(BPF_PROG_DETACH, &a)) return -1;
		close(prog);
	}
	return close(cgroup);
}

static void breakout(const char *version) {
	const char *dir = "/cgroup";
	if (strcmp(version, "v2") == 0) {
		printf("%s\n", outcome(mount("cgroup2", dir, "cgroup2", 0, "") || detach(dir)));
		return;
	}
	int fd = -1, failed = mount("cgroup", dir, "cgroup", 0, "devices");
	if (!failed) fd = open("/cgroup/devices.allow", O_WRONLY | O_CLOEXEC);
	printf("%s\n", outcome(failed || fd < 0 || write(fd, "a *:* rwm", 9) < 0));
}

static void leave(const char *version) {
	int v2 = strcmp(version, "v2") == 0, fd = -1;
	int failed = mount("cgroup", "/cgroup", v2 ? "cgroup2" : "cgroup", 0, v2 ? "" : "devices");
	if (!failed) fd = open("/cgroup/cgroup.procs", O_WRONLY | O_CLOEXEC);
	printf("%s\n", outcome(failed || fd < 0 || write(fd, "0", 1) < 0));
}

/* setlease takes a lease on a file, as each user that a container's root can become. Files
 * that are open elsewhere can't be leased for the moment. */
static int setlease(const char *path) {
	static const unsigned users[] = {0, 1, 65534, 4294967294u};
	struct stat st;
	if (stat(path, &st)) return -1;
	for (unsigned i = 0; i <= sizeof users / sizeof *users; i++) {
		int fd, status;
		pid_t child = fork();
		if (child == 0) {
			if (syscall(SYS_setresuid, i ? users[i - 1] : st.st_uid, -1, -1)) _exit(errno);
			for (int tries = 0; tries < 1000; tries++) {
				fd = open(path, O_RDONLY | O_CLOEXEC);
				if (fd < 0) _exit(errno);
				if (fcntl(fd, F_SETLEASE, F_WRLCK) == 0) _exit(0);
				if (errno != EAGAIN) break;
				close(fd);
				usleep(10000);
			}
			_exit(errno);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
		errno = WEXITSTATUS(status);
		if (errno == 0) return 0;
	}
	return -1;
}

int main(void) {
	char line[1024], path[1000];
	unsigned ma, mi;
	while (fgets(line, sizeof line, stdin)) {
		if (strcmp(line, "end\n") == 0) break;
		if (sscanf(line, "open %999s", path) == 1) answer_open(path);
		else if (sscanf(line, "cat %999s", path) == 1) answer_cat(path);
		else if (sscanf(line, "lease %999s", path) == 1) printf("%s\n", outcome(setlease(path)));
		else if (sscanf(line, "breakout %999s", path) == 1) breakout(path);
		else if (sscanf(line, "leave %999s", path) == 1) leave(path);
		else if (sscanf(line, "mknod %999s %u %u", path, &ma, &mi) == 3)
			printf("%s\n", outcome(mknod(path, S_IFCHR | 0666, makedev(ma, mi))));
		else printf("unknown command\n");
		fflush(stdout);
	}
	return 0;
}
