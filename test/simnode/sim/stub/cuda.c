/* A libcuda that counts what it may open: as many devices as nodes of
 * /dev/nvidiaN that can be opened, which a simulated node answers with ENXIO. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100 };

static int devices = -1;

static int opens(const char *path) {
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno == ENXIO;
	close(fd);
	return 1;
}

int cuInit(unsigned int flags) {
	char path[32];
	int n = 0;
	if (flags)
		return INVALID_VALUE;
	if (!opens("/dev/nvidiactl") || !opens("/dev/nvidia-uvm"))
		return NO_DEVICE;
	for (int i = 0; i < 32; i++) {
		snprintf(path, sizeof path, "/dev/nvidia%d", i);
		n += opens(path);
	}
	devices = n;
	return n ? SUCCESS : NO_DEVICE;
}

int cuDeviceGetCount(int *n) {
	if (devices < 0)
		return NOT_INITIALIZED;
	*n = devices;
	return SUCCESS;
}

int cuDriverGetVersion(int *version) {
	*version = 12040;
	return SUCCESS;
}

int cuGetErrorString(int code, const char **text) {
	*text = code == SUCCESS ? "no error" : code == NO_DEVICE ? "no CUDA-capable device is detected" : "simulated error";
	return SUCCESS;
}
