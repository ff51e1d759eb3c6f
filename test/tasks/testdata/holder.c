// holder is what the hundred tasks run. It holds its GPUs, and looks all its life whether
// it can open just these: so two holders of one are seen from inside, by both.
//
//	holder live NAME MS CODE,CODE,… [HEED]
//	holder check NAME
//
// A life lasts MS milliseconds (0: for ever) and ends with the next code of the list, the
// last one again and again; with HEED it ends with that code when SIGTERM comes. /hold is
// shared by all:
//
//	gpus           the number and UUID of each GPU of the machine
//	nodes/N        a node of each, which only the device rules keep from being opened
//	locks/N        locked by who has GPU N, with its name inside
//	records/NAME   start LIFE N,N…; said LIFE LINES; end LIFE CODE; each with the time
//	violations     what must not be
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { most = 64 };

static const char *name;
static int gpus, mine[most];
static volatile sig_atomic_t asked;

static void ask(int sig) { (void)sig; asked = 1; }

// add appends one line and the time, in nanoseconds, in one write.
static void add(const char *file, const char *format, ...)
{
	char path[300], line[600];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line - 40, format, args);
	va_end(args);
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	n += snprintf(line + n, 40, " %lld\n", t.tv_sec * 1000000000LL + t.tv_nsec);
	snprintf(path, sizeof path, "/hold/%s", file);
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 || write(fd, line, n) != n)
		_exit(90);
	close(fd);
}

static void violation(const char *format, ...)
{
	char text[400];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	add("violations", "%s: %s", name, text);
}

// learn reads which GPUs there are, and which are ours.
static void learn(void)
{
	const char *list = getenv("BERTH_DEVICES");
	char uuid[200];
	int n;
	FILE *f = fopen("/hold/gpus", "r");
	if (!f || !list)
		violation("no list of GPUs: %s", list ? "" : "BERTH_DEVICES isn't set");
	while (f && fscanf(f, "%d %199s", &n, uuid) == 2 && n < most) {
		gpus = n + 1;
		mine[n] = list && strstr(list, uuid) != NULL;
	}
	if (f)
		fclose(f);
}

// hold locks what is ours, as long as this process lives.
static void hold(void)
{
	for (int n = 0; n < gpus; n++) {
		char path[100], other[100] = "";
		if (!mine[n])
			continue;
		snprintf(path, sizeof path, "/hold/locks/%d", n);
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
		if (fd < 0) {
			violation("open %s: %s", path, strerror(errno));
			continue;
		}
		if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
			if (pread(fd, other, sizeof other - 1, 0) < 0)
				other[0] = 0;
			violation("GPU %d is held by %s, who lives", n, other);
			continue;
		}
		if (ftruncate(fd, 0) != 0 || pwrite(fd, name, strlen(name), 0) < 0)
			violation("write %s: %s", path, strerror(errno));
	}
}

// look opens every GPU of the machine. Where no driver is behind a node, ENXIO says that
// it could be opened.
static void look(void)
{
	for (int n = 0; n < gpus; n++) {
		char path[100];
		snprintf(path, sizeof path, "/hold/nodes/%d", n);
		int fd = open(path, O_RDWR | O_CLOEXEC), why = errno;
		int open = fd >= 0 || why == ENXIO;
		if (fd >= 0)
			close(fd);
		if (open != mine[n] || (!open && why != EPERM))
			violation("GPU %d is %s, and opening it gives: %s", n, mine[n] ? "ours" : "not ours", fd >= 0 ? "success" : strerror(why));
		snprintf(path, sizeof path, "/dev/nvidia%d", n);
		if ((access(path, F_OK) == 0) != mine[n])
			violation("GPU %d is %s, and %s is %s", n, mine[n] ? "ours" : "not ours", path, mine[n] ? "missing" : "there");
	}
}

static int lives(void)
{
	char path[300], line[200];
	int n = 0;
	snprintf(path, sizeof path, "/hold/records/%s", name);
	FILE *f = fopen(path, "r");
	while (f && fgets(line, sizeof line, f))
		n += strncmp(line, "start ", 6) == 0;
	if (f)
		fclose(f);
	return n;
}

static int codeOf(char *list, int life)
{
	int code = 0;
	for (char *word = strtok(list, ","); word && life-- > 0; word = strtok(NULL, ","))
		code = atoi(word);
	return code;
}

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void live(long long ms, char *codes, const char *heed)
{
	char record[300], list[400] = "-";
	int life = lives() + 1, code = codeOf(codes, life);
	long long end = now() + ms;
	snprintf(record, sizeof record, "records/%s", name);
	if (heed)
		signal(SIGTERM, ask);
	hold();
	for (int n = 0, at = 0; n < gpus; n++)
		if (mine[n])
			at += snprintf(list + at, sizeof list - at, "%s%d", at ? "," : "", n);
	add(record, "start %d %s", life, list);
	for (int line = 1; !asked && (ms == 0 || now() < end); line++) {
		char text[200];
		look();
		int n = snprintf(text, sizeof text, "%s %d %d\n", name, life, line);
		if (write(line % 2 ? 1 : 2, text, n) != n)
			violation("write line %d of life %d: %s", line, life, strerror(errno));
		add(record, "said %d %d", life, line);
		usleep(30000);
	}
	if (asked)
		code = atoi(heed);
	add(record, "end %d %d", life, code);
	_exit(code);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 91;
	name = argv[2];
	learn();
	if (argc >= 5)
		live(atoll(argv[3]), argv[4], argc > 5 ? argv[5] : NULL);
	look();
	return 0;
}
