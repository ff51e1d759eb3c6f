/* opener opens the device nodes of all GPUs of a server, again and again.

     opener show PREFIX             prints which GPUs can be opened
     opener hold PREFIX NAME N MS   has a lease of N GPUs: for MS milliseconds it opens these and no others
     opener none PREFIX NAME MS     has no lease and opens none, each time with EPERM; 0 is until /mix/end exists

   PREFIX and the index of a GPU are the path of its node. No driver is behind the nodes of a
   simulated server: ENXIO says that the node could be opened. A holder locks a file for each of its
   GPUs as long as it lives, so two holders of one GPU are seen. /mix has, for all users:

     gpus         the index and UUID of each GPU
     locks/N      locked by the holder of GPU N, whose name is inside
     records      hold NAME N,N… and held NAME LOOKS; none NAME LOOKS
     violations   what must not be

   It is static, so that it runs in any root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { gpus = 8 };

static const char *prefix, *name;

/* add appends one line to a file in one write. */
static void add(const char *path, const char *format, ...) {
	char line[600];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line - 1, format, args);
	va_end(args);
	line[n++] = '\n';
	int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd < 0 || write(fd, line, n) != n) _exit(90);
	close(fd);
}

#define violation(format, ...) add("/mix/violations", "%s (uid %d): " format, name, getuid(), __VA_ARGS__)

/* tryOpen returns the error of opening a GPU's node, 0 for success. */
static int tryOpen(int gpu) {
	char path[200];
	snprintf(path, sizeof path, "%s%d", prefix, gpu);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) return errno;
	close(fd);
	return 0;
}

static int isOpen(int error) { return error == 0 || error == ENXIO; }

static long long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* look checks that the GPUs of a set, and no others, can be opened. */
static void look(const int *mine) {
	for (int n = 0; n < gpus; n++) {
		int error = tryOpen(n);
		if (isOpen(error) != mine[n] || (!mine[n] && error != EPERM))
			violation("GPU %d is %s, and opening it gives: %s", n, mine[n] ? "its own" : "not its own", error ? strerror(error) : "success");
	}
}

/* lock holds a lock of a GPU until the process ends. */
static void lock(int gpu) {
	char path[100], other[100] = "";
	snprintf(path, sizeof path, "/mix/locks/%d", gpu);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		violation("open %s: %s", path, strerror(errno));
		return;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
		if (pread(fd, other, sizeof other - 1, 0) < 0) other[0] = 0;
		violation("GPU %d is held by %s, too", gpu, other);
		return;
	}
	if (ftruncate(fd, 0) != 0 || pwrite(fd, name, strlen(name), 0) < 0) violation("write %s: %s", path, strerror(errno));
}

/* readLease finds the GPUs of the lease by the variable that lists them. */
static void readLease(int *mine) {
	const char *list = getenv("BERTH_DEVICES");
	char uuid[200];
	int n;
	FILE *f = fopen("/mix/gpus", "r");
	if (!f || !list) violation("it doesn't know its lease: %s", f ? "BERTH_DEVICES isn't set" : "no /mix/gpus");
	while (f && fscanf(f, "%d %199s", &n, uuid) == 2 && n < gpus) mine[n] = list && strstr(list, uuid) != NULL;
	if (f) fclose(f);
}

static void hold(int count, long long ms) {
	int mine[gpus] = {0}, has = 0, looks = 0;
	char list[100] = "";
	readLease(mine);
	for (int n = 0; n < gpus; n++) {
		if (!mine[n]) continue;
		lock(n);
		sprintf(list + strlen(list), "%s%d", has++ ? "," : "", n);
	}
	if (has != count) violation("it has %d GPUs and asked for %d", has, count);
	add("/mix/records", "hold %s %s", name, list);
	for (long long end = now() + ms; now() < end; looks++) {
		look(mine);
		usleep(20000);
	}
	add("/mix/records", "held %s %d", name, looks);
}

static void none(long long ms) {
	const int mine[gpus] = {0};
	int looks = 0;
	for (long long end = now() + ms; ms == 0 ? access("/mix/end", F_OK) != 0 : now() < end; looks++) {
		look(mine);
		usleep(20000);
	}
	add("/mix/records", "none %s %d", name, looks);
}

int main(int argc, char **argv) {
	if (argc < 3) return 91;
	prefix = argv[2];
	name = argc > 3 ? argv[3] : "";
	if (argc == 3 && strcmp(argv[1], "show") == 0) {
		for (int n = 0; n < gpus; n++)
			if (isOpen(tryOpen(n))) printf("%d", n);
		printf(".\n");
	} else if (argc == 6 && strcmp(argv[1], "hold") == 0)
		hold(atoi(argv[4]), atoll(argv[5]));
	else if (argc == 5 && strcmp(argv[1], "none") == 0)
		none(atoll(argv[4]));
	else
		return 91;
	return 0;
}
