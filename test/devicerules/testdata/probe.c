/* The program inside the container: it does what it is told, one command a line of
   its standard input, or of the file that it is given, and answers with one line.

     open PATH                  as reader, writer and both: three error names, or one
                                if they are the same; "ok" if it was opened
     mknod PATH MAJOR MINOR     makes a character device
     caps                       the five capability sets, as /proc/self/status has them
     detach DIR                 takes the device programs off the cgroup DIR (v2)
     allow DIR                  allows all devices in the cgroup DIR (v1)
     pidfd PATH                 asks for a pidfd of the process that listens at a socket
     lease PATH                 takes a lease on a file that it opens for reading
     sample PID                 opens events of a process, 0 for itself, or -1 for all
     watch                      asks for a group of fanotify
     namespaces                 opens another mount namespace of the machine
     end                        "end", and nothing is held back any more */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

static const char *try(const char *path, int how) {
	int fd = open(path, how | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0) return strerrorname_np(errno);
	close(fd);
	return "ok";
}

static void answer_open(const char *path) {
	const char *r = try(path, O_RDONLY), *w = try(path, O_WRONLY), *rw = try(path, O_RDWR);
	if (strcmp(r, w) == 0 && strcmp(r, rw) == 0) printf("%s\n", r);
	else printf("%s %s %s\n", r, w, rw);
}

static void answer_mknod(const char *path, unsigned ma, unsigned mi) {
	printf("%s\n", mknod(path, S_IFCHR | 0666, makedev(ma, mi)) ? strerrorname_np(errno) : "ok");
}

static void answer_caps(void) {
	char line[256], name[16], value[32];
	FILE *f = fopen("/proc/self/status", "r");
	const char *space = "";
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "Cap%15[^:]: %31s", name, value) == 2) {
			printf("%s%s", space, value);
			space = " ";
		}
	printf("\n");
	if (f) fclose(f);
}

static long bpf(int cmd, union bpf_attr *attr) { return syscall(SYS_bpf, cmd, attr, sizeof *attr); }

static void answer_detach(const char *dir) {
	unsigned ids[16] = {0};
	int cgroup = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	union bpf_attr a;
	memset(&a, 0, sizeof a);
	a.query.target_fd = cgroup;
	a.query.attach_type = BPF_CGROUP_DEVICE;
	a.query.prog_ids = (unsigned long)ids;
	a.query.prog_cnt = 16;
	if (cgroup < 0 || bpf(BPF_PROG_QUERY, &a)) {
		printf("query %s\n", strerrorname_np(errno));
		return;
	}
	unsigned n = a.query.prog_cnt;
	for (unsigned i = 0; i < n; i++) {
		memset(&a, 0, sizeof a);
		a.prog_id = ids[i];
		int prog = bpf(BPF_PROG_GET_FD_BY_ID, &a);
		memset(&a, 0, sizeof a);
		a.target_fd = cgroup;
		a.attach_bpf_fd = prog;
		a.attach_type = BPF_CGROUP_DEVICE;
		if (prog < 0 || bpf(BPF_PROG_DETACH, &a)) {
			printf("detach %s\n", strerrorname_np(errno));
			return;
		}
		close(prog);
	}
	close(cgroup);
	printf("%u detached\n", n);
}

static void answer_allow(const char *dir) {
	char path[1100];
	snprintf(path, sizeof path, "%s/devices.allow", dir);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "a *:* rwm", 9) < 0) printf("%s\n", strerrorname_np(errno));
	else printf("ok\n");
	if (fd >= 0) close(fd);
}

static void answer_pidfd(const char *path) {
	const int peer_pidfd = 77; /* SO_PEERPIDFD, which older headers lack */
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = -1, s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t n = sizeof fd;
	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof a)) printf("connect %s\n", strerrorname_np(errno));
	else printf("%s\n", getsockopt(s, SOL_SOCKET, peer_pidfd, &fd, &n) ? strerrorname_np(errno) : "ok");
	if (fd >= 0) close(fd);
	if (s >= 0) close(s);
}

static void answer_lease(const char *path) {
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	signal(SIGIO, SIG_IGN);
	if (fd < 0) printf("open %s\n", strerrorname_np(errno));
	else printf("%s\n", fcntl(fd, F_SETLEASE, F_WRLCK) ? strerrorname_np(errno) : "ok");
	if (fd >= 0) close(fd);
}

static void answer_sample(int pid) {
	struct perf_event_attr a = {.type = PERF_TYPE_SOFTWARE, .size = sizeof a, .config = PERF_COUNT_SW_CPU_CLOCK};
	int fd = syscall(SYS_perf_event_open, &a, pid, pid < 0 ? 0 : -1, -1, 0UL);
	printf("%s\n", fd < 0 ? strerrorname_np(errno) : "ok");
	if (fd >= 0) close(fd);
}

static void answer_watch(void) {
	int fd = syscall(SYS_fanotify_init, 0, O_RDONLY | O_CLOEXEC);
	printf("%s\n", fd < 0 ? strerrorname_np(errno) : "ok");
	if (fd >= 0) close(fd);
}

/* Older kernels don't know the request: ENOTTY. */
static void answer_namespaces(void) {
	const unsigned next = 0x8010b70b; /* NS_MNT_GET_NEXT */
	int fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	int other = fd < 0 ? -1 : ioctl(fd, next, NULL);
	printf("%s\n", other < 0 ? strerrorname_np(errno) : "ok");
	if (other >= 0) close(other);
	if (fd >= 0) close(fd);
}

int main(int argc, char **argv) {
	char line[1024], path[1000];
	unsigned ma, mi;
	int pid;
	if (argc > 1 && !freopen(argv[1], "r", stdin)) return 1;
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "open %999s", path) == 1) answer_open(path);
		else if (sscanf(line, "mknod %999s %u %u", path, &ma, &mi) == 3) answer_mknod(path, ma, mi);
		else if (sscanf(line, "detach %999s", path) == 1) answer_detach(path);
		else if (sscanf(line, "allow %999s", path) == 1) answer_allow(path);
		else if (sscanf(line, "pidfd %107s", path) == 1) answer_pidfd(path);
		else if (sscanf(line, "lease %999s", path) == 1) answer_lease(path);
		else if (sscanf(line, "sample %d", &pid) == 1) answer_sample(pid);
		else if (strcmp(line, "watch\n") == 0) answer_watch();
		else if (strcmp(line, "namespaces\n") == 0) answer_namespaces();
		else if (strcmp(line, "caps\n") == 0) answer_caps();
		else if (strcmp(line, "end\n") == 0) {
			printf("end\n");
			fflush(stdout);
		} else printf("unknown command\n");
	}
	return 0;
}
