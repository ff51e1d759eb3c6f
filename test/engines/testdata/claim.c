/* A task as short as a test: "claim COUNT MS NAME" claims every GPU that it can open, works
   for so many milliseconds, and ends.

   A claim is a lock on a file of /claims, which all tasks of a host share; the kernel
   takes it back when the task ends, however that is. Who finds a GPU claimed, or opens
   more or fewer GPUs than COUNT, writes so into /claims/faults and exits with 3. It
   knows nothing of leases. GPUs are opened by the container's nodes, and by the host's,
   which are at /nodes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static int faults;
static const char *name;

static void fault(const char *what, int a, int b) {
	char line[300];
	const char *lease = getenv("BERTH_LEASE");
	int n = snprintf(line, sizeof line, "%s, lease %s: %s: %d, %d\n", name, lease ? lease : "unknown", what, a, b);
	int fd = open("/claims/faults", O_WRONLY | O_APPEND | O_CREAT, 0666);
	if (fd < 0 || write(fd, line, n) != n) perror("/claims/faults");
	fputs(line, stderr);
	faults++;
}

/* There is no driver: a node whose opening is allowed has no device behind it. */
static int reaches(const char *dir, int gpu) {
	char path[50];
	snprintf(path, sizeof path, "%s/nvidia%d", dir, gpu);
	int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0) close(fd);
	return fd >= 0 || errno == ENXIO;
}

int main(int argc, char **argv) {
	if (argc != 4) return 2;
	name = argv[3];
	int count = 0, ms = atoi(argv[2]);
	for (int i = 0; i < 8; i++) {
		int own = reaches("/dev", i), host = reaches("/nodes", i);
		if (own != host) fault("GPU, and whether only its own node can be opened", i, own);
		if (!own && !host) continue;
		count++;
		char path[50];
		snprintf(path, sizeof path, "/claims/gpu%d", i);
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666); /* open until the end */
		if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB)) fault("GPU that another one holds, and why it can't be claimed", i, errno);
	}
	if (count && access("/dev/nvidiactl", F_OK)) fault("GPUs, and why their control node isn't there", count, errno);
	if (count != atoi(argv[1])) fault("GPUs that were asked for, and that can be opened", atoi(argv[1]), count);
	struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
	nanosleep(&left, NULL);
	return faults ? 3 : 0;
}
