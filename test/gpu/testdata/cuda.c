// A libcuda that answers as CUDA does, for the devices whose nodes may be opened, and
// computes the one product that probe asks for. In a container, whose first process it
// serves, it can do what run.sh has to notice:
//
//	-DLEAK   it shows a second device
//	-DSLOW   it takes longer
//	-DDEAF   it doesn't start
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long address;

static int minors[32], count;

static inline int inside(void) { return getpid() == 1; }

int cuInit(unsigned flags)
{
	(void)flags;
	count = 0;
	for (int i = 0; i < 32; i++) {
		char path[32];
		snprintf(path, sizeof path, "/dev/nvidia%d", i);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0 || errno == ENXIO) // a simulated one's
			minors[count++] = i;
		if (fd >= 0)
			close(fd);
	}
#ifdef LEAK
	if (inside() && count)
		minors[count++] = 31;
#endif
#ifdef DEAF
	if (inside())
		return 999;
#endif
	return count ? 0 : 100;
}

int cuDeviceGetCount(int *n) { return *n = count, 0; }
int cuDeviceGet(int *device, int i) { return *device = i, 0; }
int cuDeviceGetName(char *name, int n, int device) { return snprintf(name, n, "Imaginary %d", device), 0; }
int cuDeviceGetUuid_v2(unsigned char *id, int device) { return memset(id, 0, 16), id[15] = minors[device], 0; }
int cuDevicePrimaryCtxRetain(void **ctx, int device) { return (void)device, *ctx = ctx, 0; }
int cuCtxSetCurrent(void *ctx) { return (void)ctx, 0; }
int cuMemAlloc_v2(address *a, size_t n) { return (*a = (address)malloc(n)) ? 0 : 2; }
int cuMemcpyHtoD_v2(address to, const void *from, size_t n) { return memcpy((void *)to, from, n), 0; }
int cuMemcpyDtoH_v2(void *to, address from, size_t n) { return memcpy(to, (void *)from, n), 0; }
int cuModuleLoadData(void **module, const void *text) { return *module = (void *)text, 0; }
int cuModuleGetFunction(void **f, void *module, const char *name) { return (void)name, *f = module, 0; }
int cuCtxSynchronize(void) { return 0; }
int cuGetErrorName(int code, const char **name) { return *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN", 0; }

// The second factor is all ones: each element is the sum of its row.
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
		   void **args, void **extra)
{
	float *a = *(float **)args[0], *c = *(float **)args[2];
	unsigned n = *(unsigned *)args[3];
	struct timespec pause = {0, 30000000};
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
	for (unsigned row = 0; row < n; row += 97) { // those that are looked at
		float sum = 0;
		for (unsigned k = 0; k < n; k++)
			sum += a[row * n + k];
		c[row * n + 5] = sum;
	}
#ifdef SLOW
	if (inside())
		pause.tv_nsec *= 2;
#endif
	nanosleep(&pause, NULL);
	return 0;
}
