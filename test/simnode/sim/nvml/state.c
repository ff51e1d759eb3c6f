#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_FILE "/run/simnode/nvml.state"
#define FOOTER 24 /* "SIMNODE-STATE%010u\n": follows a state at the end of the library's file */

int initialized;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text, **lines;
static size_t count;
static int own; /* the state came from the library's own file */
static struct stat seen;

static char *slurp(int fd, off_t from, size_t size) {
	char *to = malloc(size + 1);
	if (to && pread(fd, to, size, from) != (ssize_t)size) {
		free(to);
		return NULL;
	}
	if (to)
		to[size] = 0;
	return to;
}

/* own_state reads what was appended to this library's file. */
static char *own_state(void) {
	Dl_info info;
	struct stat st;
	char footer[FOOTER + 1] = "", *found = NULL;
	uint size;
	if (!dladdr((void *)&own_state, &info))
		return NULL;
	int fd = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && st.st_size > FOOTER && pread(fd, footer, FOOTER, st.st_size - FOOTER) == FOOTER &&
	    sscanf(footer, "SIMNODE-STATE%u", &size) == 1 && size < st.st_size - FOOTER)
		found = slurp(fd, st.st_size - FOOTER - size, size);
	close(fd);
	return found;
}

static void index_lines(char *t) {
	free(text);
	free(lines);
	text = t;
	count = 0;
	for (char *p = t; *p; p++)
		count += *p == '\n';
	lines = calloc(count + 1, sizeof *lines);
	if (!lines) {
		count = 0;
		return;
	}
	size_t i = 0;
	for (char *line = strtok_r(t, "\n", &t); line && i < count; line = strtok_r(NULL, "\n", &t))
		lines[i++] = line;
	count = i;
}

/* load reads the state unless it is the one that is known. */
static int load(void) {
	struct stat st;
	int fd = open(STATE_FILE, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		if (text && own)
			return 1;
		char *t = own_state();
		if (!t)
			return 0;
		own = 1;
		index_lines(t);
		return 1;
	}
	if (fstat(fd, &st) != 0) {
		close(fd);
		return 0;
	}
	if (text && !own && st.st_ino == seen.st_ino && st.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
	    st.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) {
		close(fd);
		return 1;
	}
	char *t = slurp(fd, 0, st.st_size);
	close(fd);
	if (!t)
		return 0;
	own = 0;
	seen = st;
	index_lines(t);
	return 1;
}

/* order compares a key with the key at the start of a line, as bytes. */
static int order(const void *key, const void *entry) {
	const char *k = key, *l = *(char *const *)entry;
	while (*k && *k == *l)
		k++, l++;
	if (!*k && *l == ' ')
		return 0;
	unsigned char a = *k ? *k : ' ', b = *l;
	return a < b ? -1 : 1;
}

static const char *find(const char *key) {
	char **line = bsearch(key, lines, count, sizeof *lines, order);
	return line ? *line + strlen(key) + 1 : "";
}

const char *state(const char *format, ...) {
	char key[128];
	va_list args;
	va_start(args, format);
	vsnprintf(key, sizeof key, format, args);
	va_end(args);
	return find(key);
}

u64 number(const char *format, ...) {
	char key[128];
	va_list args;
	va_start(args, format);
	vsnprintf(key, sizeof key, format, args);
	va_end(args);
	return strtoull(find(key), NULL, 10);
}

ret put(char *to, uint size, const char *from) {
	if (!to)
		return INVALID_ARGUMENT;
	if (strlen(from) >= size)
		return INSUFFICIENT_SIZE;
	strcpy(to, from);
	return OK;
}

int shown(const char *format, ...) {
	char path[128];
	va_list args;
	va_start(args, format);
	vsnprintf(path, sizeof path, format, args);
	va_end(args);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) /* ENXIO: allowed, and no driver behind it. The host's driver makes missing nodes. */
		return errno == ENXIO || (!own && errno == ENOENT);
	close(fd);
	return 1;
}

const char *simulated_at(void) { return own ? "this container" : state("system.simulated"); }

/* among says whether a list "0,3" or "*" has the GPU; any list has NONE. */
static int among(const char *list, int gpu) {
	char word[16];
	if (gpu == NONE || *list == '*')
		return 1;
	snprintf(word, sizeof word, "%d", gpu);
	for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
		if (strcspn(p, ",") == strlen(word) && !strncmp(p, word, strlen(word)))
			return 1;
	return 0;
}

static ret begin(const char *versioned, int gpu) {
	char function[96];
	snprintf(function, sizeof function, "%s", versioned);
	char *version = strstr(function, "_v");
	if (version) /* what is told of a function is told of all its versions */
		*version = 0;
	pthread_mutex_lock(&lock);
	for (;;) {
		if (!load())
			return leave(DRIVER_NOT_LOADED);
		const char *hang = state("hang.%s", function);
		if (!*hang || !among(hang, gpu))
			break;
		pthread_mutex_unlock(&lock);
		usleep(20 * 1000);
		pthread_mutex_lock(&lock);
	}
	int code, skip = 0;
	const char *fail = state("fail.%s", function);
	if (sscanf(fail, "%d %n", &code, &skip) == 1 && among(fail + skip, gpu))
		return leave(code);
	return OK;
}

ret leave(ret r) {
	pthread_mutex_unlock(&lock);
	return r;
}

ret enter(const char *function) {
	ret r = begin(function, NONE);
	if (r == OK && !initialized && strncmp(function, "nvmlInit", 8))
		return leave(UNINITIALIZED);
	return r;
}

ret enter_gpu(const char *function, device d) {
	if (!d)
		return INVALID_ARGUMENT;
	ret r = begin(function, d->gpu);
	if (r != OK)
		return r;
	if (!initialized)
		return leave(UNINITIALIZED);
	if (number("g%d.lost", d->gpu))
		return leave(GPU_IS_LOST);
	if (!refresh(d))
		return leave(INVALID_ARGUMENT);
	return OK;
}

ret enter_whole(const char *function, device d) {
	ret r = enter_gpu(function, d);
	if (r == OK && d->slice != NONE)
		return leave(INVALID_ARGUMENT);
	return r;
}

/* Handles are never freed: callers may hold them for ever. */
static struct device *devices[4096];
static struct instance *instances[4096];

static device handle(int gpu, int slice, const char *uuid) {
	int i = 0;
	for (; i < 4096 && devices[i]; i++)
		if (devices[i]->gpu == gpu && !strcmp(devices[i]->uuid, uuid))
			return devices[i];
	if (i == 4096 || !(devices[i] = calloc(1, sizeof **devices)))
		return NULL;
	devices[i]->gpu = gpu;
	devices[i]->slice = slice;
	snprintf(devices[i]->uuid, sizeof devices[i]->uuid, "%s", uuid);
	return devices[i];
}

device whole(int gpu) { return handle(gpu, NONE, state("g%d.uuid", gpu)); }

device part(int gpu, int slice) {
	char uuid[80] = "";
	sscanf(state("g%d.s%d", gpu, slice), "%79s", uuid);
	device d = handle(gpu, slice, uuid);
	if (d)
		d->slice = slice;
	return d;
}

int refresh(device d) {
	if (d->slice == NONE)
		return 1;
	int n = (int)number("g%d.slices", d->gpu);
	for (int i = 0; i < n; i++) {
		const char *line = state("g%d.s%d", d->gpu, i);
		size_t size = strlen(d->uuid);
		if (!strncmp(line, d->uuid, size) && line[size] == ' ') {
			d->slice = i;
			return 1;
		}
	}
	return 0;
}

instance instance_of(int gpu, int id, int ci) {
	int i = 0;
	for (; i < 4096 && instances[i]; i++)
		if (instances[i]->gpu == gpu && instances[i]->id == id && instances[i]->ci == ci)
			return instances[i];
	if (i == 4096 || !(instances[i] = calloc(1, sizeof **instances)))
		return NULL;
	*instances[i] = (struct instance){gpu, id, ci};
	return instances[i];
}
