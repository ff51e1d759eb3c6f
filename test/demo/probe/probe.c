/*
 * What a task in the demo does inside its container: it tries to open every
 * accelerator node of the host (whose /dev is bound at /host/dev for that
 * purpose), tries to make a node of its own, and loads libcuda.so.1 the way any
 * CUDA program does. It prints one JSON object.
 *
 * Opening a node answers EPERM if the device rules hold; anything else (a
 * descriptor, or ENXIO from a driver that isn't there) means that the rules let
 * it pass.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

static const char *dirs[] = {"", "nvidia-caps", "dri", "infiniband"};

static int accelerator(const char *dir, const char *name)
{
	if (!strcmp(dir, ""))
		return !strncmp(name, "nvidia", 6);
	return strcmp(dir, "dri") || !strncmp(name, "card", 4) || !strncmp(name, "render", 6);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Tries each node of one directory and prints it as a JSON object. */
static void try_dir(const char *dir, int *count)
{
	char path[512];
	struct dirent *e;
	struct stat st;
	DIR *d;

	snprintf(path, sizeof path, "/host/dev/%s", dir);
	if (!(d = opendir(path)))
		return;
	while ((e = readdir(d))) {
		int fd, err;
		if (!accelerator(dir, e->d_name))
			continue;
		snprintf(path, sizeof path, "/host/dev/%s%s%.200s", dir, *dir ? "/" : "", e->d_name);
		if (lstat(path, &st) || !S_ISCHR(st.st_mode))
			continue;
		fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
		err = fd < 0 ? errno : 0;
		if (fd >= 0)
			close(fd);
		printf("%s{\"node\":\"%s\",\"major\":%u,\"minor\":%u,\"allowed\":%s,\"error\":\"%s\"}", (*count)++ ? "," : "",
		       path + strlen("/host"), major(st.st_rdev), minor(st.st_rdev), err == EPERM ? "false" : "true",
		       err ? strerrorname_np(err) : "");
	}
	closedir(d);
}

static const char *library(void *handle)
{
	struct link_map *map;
	return dlinfo(handle, RTLD_DI_LINKMAP, &map) ? "?" : map->l_name;
}

int main(int argc, char **argv)
{
	double start = now();
	int count = 0, rc;
	void *cuda;

	printf("{\"nodes\":[");
	for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
		try_dir(dirs[i], &count);
	rc = mknod("/tmp/node", S_IFCHR | 0666, makedev(195, 0));
	printf("],\"mknod\":\"%s\"", rc ? strerrorname_np(errno) : "made");

	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	printf(",\"libcuda\":\"%s\",\"dlopen_error\":\"%s\"", cuda ? library(cuda) : "", cuda ? "" : dlerror());
	printf(",\"devices\":\"%s\"", getenv("BERTH_DEVICES") ? getenv("BERTH_DEVICES") : "");
	fflush(stdout);
	usleep(argc > 1 ? atof(argv[1]) * 1e6 : 0);
	printf(",\"start\":%.6f,\"end\":%.6f}\n", start, now());
	return 0;
}
