// Slurm's daemons refuse a machine with hierarchies of cgroup version 1 beside that of version 2, which a host of test/rack has mounted alone. With this library
// (LD_PRELOAD) they read of /proc/PID/cgroup the line of version 2 only. Jobs don't inherit it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int unified(int fd)
{
	char line[4096];
	FILE *f = fdopen(fd, "r");
	int copy = memfd_create("cgroup", MFD_CLOEXEC);

	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, "0::", 3) && write(copy, line, strlen(line)) < 0)
			break;
	if (f)
		fclose(f);
	lseek(copy, 0, SEEK_SET);
	return copy;
}

int open(const char *path, int flags, ...)
{
	static int (*next)(const char *, int, ...);
	va_list args;
	mode_t mode;
	int fd;

	if (!next)
		next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
	va_start(args, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	fd = next(path, flags, mode);
	return fd >= 0 && !fnmatch("/proc/*/cgroup", path, FNM_PATHNAME) ? unified(fd) : fd;
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));
