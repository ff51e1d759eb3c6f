// probe uses an accelerator as programs do, and says in one line what came of it:
//
//	probe devices   the devices that CUDA shows: "device 0 UUID NAME", one line each
//	probe rules     which nodes of NVIDIA's can be opened, and whether others can be made
//	probe product   the speed of a matrix product by a kernel of its own
//	probe blas      the same by cuBLAS
//	probe nccl      an all-reduce in a world of one rank
//
// It needs no library but libc: what it uses it looks for when it runs. Exit codes are 0,
// 1 for what went wrong, and 77 where something isn't there to be used.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { LACKS = 77, NODES = 32, N = 2048, RUNS = 8 };

static void lacks(const char *what, const char *why)
{
	printf("%s: %s\n", what, why ? why : "not there");
	exit(LACKS);
}

static void failed(const char *what, long code, const char *name)
{
	printf("%s: error %ld %s\n", what, code, name ? name : "");
	exit(1);
}

static void *library(const char *const *names)
{
	const char *why = NULL;
	for (; *names; names++) {
		void *lib = dlopen(*names, RTLD_NOW | RTLD_GLOBAL);
		if (lib)
			return lib;
		why = dlerror();
	}
	lacks("library", why);
	return NULL;
}

static void *symbol(void *lib, const char *name)
{
	void *f = dlsym(lib, name);
	if (!f)
		lacks(name, "no such function in the library");
	return f;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

// CUDA's driver API, as far as it is used. Handles are pointers, addresses numbers.
typedef unsigned long long address;

static void *cuda;

static int (*cuInit)(unsigned), (*cuDeviceGetCount)(int *), (*cuDeviceGet)(int *, int), (*cuDeviceGetName)(char *, int, int),
	(*cuDeviceGetUuid)(unsigned char *, int), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *),
	(*cuMemAlloc)(address *, size_t), (*cuMemcpyHtoD)(address, const void *, size_t), (*cuMemcpyDtoH)(void *, address, size_t),
	(*cuModuleLoadData)(void **, const void *), (*cuModuleGetFunction)(void **, void *, const char *),
	(*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
	(*cuCtxSynchronize)(void), (*cuGetErrorName)(int, const char **);

static void check(const char *what, int code)
{
	const char *name = NULL;
	if (!code)
		return;
	if (cuGetErrorName)
		cuGetErrorName(code, &name);
	failed(what, code, name);
}

static void load(void)
{
	static const char *const names[] = {"libcuda.so.1", NULL};
	struct { const char *name; void *to; } all[] = {
		{"cuInit", &cuInit}, {"cuDeviceGetCount", &cuDeviceGetCount}, {"cuDeviceGet", &cuDeviceGet},
		{"cuDeviceGetName", &cuDeviceGetName}, {"cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain},
		{"cuCtxSetCurrent", &cuCtxSetCurrent}, {"cuMemAlloc_v2", &cuMemAlloc}, {"cuMemcpyHtoD_v2", &cuMemcpyHtoD},
		{"cuMemcpyDtoH_v2", &cuMemcpyDtoH}, {"cuModuleLoadData", &cuModuleLoadData},
		{"cuModuleGetFunction", &cuModuleGetFunction}, {"cuLaunchKernel", &cuLaunchKernel},
		{"cuCtxSynchronize", &cuCtxSynchronize}, {"cuGetErrorName", &cuGetErrorName},
	};
	cuda = library(names);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		*(void **)all[i].to = symbol(cuda, all[i].name);
	// The second version knows slices.
	*(void **)&cuDeviceGetUuid = dlsym(cuda, "cuDeviceGetUuid_v2");
	if (!cuDeviceGetUuid)
		*(void **)&cuDeviceGetUuid = symbol(cuda, "cuDeviceGetUuid");
	check("cuInit", cuInit(0));
}

static void context(void)
{
	int device;
	void *ctx;
	load();
	check("cuDeviceGet", cuDeviceGet(&device, 0));
	check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&ctx, device));
	check("cuCtxSetCurrent", cuCtxSetCurrent(ctx));
}

static int devices(void)
{
	int count, device;
	load();
	check("cuDeviceGetCount", cuDeviceGetCount(&count));
	for (int i = 0; i < count; i++) {
		unsigned char id[16];
		char name[256] = "";
		check("cuDeviceGet", cuDeviceGet(&device, i));
		check("cuDeviceGetUuid", cuDeviceGetUuid(id, device));
		check("cuDeviceGetName", cuDeviceGetName(name, sizeof name, device));
		printf("device %d ", i);
		for (int b = 0; b < 16; b++)
			printf("%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", id[b]);
		printf(" %s\n", name);
	}
	return 0;
}

// rules names every node of a GPU's that can be opened: one that is there, or one that
// the program has made for itself.
static int rules(void)
{
	for (int i = 0; i < NODES; i++) {
		char path[64], own[] = "/tmp/node";
		snprintf(path, sizeof path, "/dev/nvidia%d", i);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd >= 0) {
			printf("opens %d\n", i);
			close(fd);
		} else if (errno != ENOENT) {
			printf("closed %d: %s\n", i, strerror(errno));
		}
		unlink(own);
		if (mknod(own, S_IFCHR | 0600, makedev(195, i)))
			continue;
		fd = open(own, O_RDWR | O_CLOEXEC);
		printf("makes %d: %s\n", i, fd < 0 ? strerror(errno) : "and opens it");
		if (fd >= 0)
			close(fd);
		unlink(own);
	}
	return 0;
}

// One thread for each element of the product.
static const char kernel[] =
	".version 6.0\n.target sm_70\n.address_size 64\n"
	".visible .entry product(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)\n{\n"
	".reg .pred %p<2>;\n.reg .f32 %f<4>;\n.reg .b32 %r<12>;\n.reg .b64 %d<10>;\n"
	"ld.param.u64 %d0, [pa];\nld.param.u64 %d1, [pb];\nld.param.u64 %d2, [pc];\nld.param.u32 %r0, [pn];\n"
	"cvta.to.global.u64 %d0, %d0;\ncvta.to.global.u64 %d1, %d1;\ncvta.to.global.u64 %d2, %d2;\n"
	"mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmad.lo.u32 %r4, %r1, %r2, %r3;\n"
	"mov.u32 %r5, %ctaid.y;\nmov.u32 %r6, %ntid.y;\nmov.u32 %r7, %tid.y;\nmad.lo.u32 %r8, %r5, %r6, %r7;\n"
	"mul.lo.u32 %r9, %r8, %r0;\nmul.wide.u32 %d3, %r9, 4;\nadd.u64 %d4, %d0, %d3;\n"
	"mul.wide.u32 %d5, %r4, 4;\nadd.u64 %d6, %d1, %d5;\nmul.wide.u32 %d7, %r0, 4;\n"
	"mov.f32 %f0, 0f00000000;\nmov.u32 %r10, 0;\n"
	"again:\nld.global.f32 %f1, [%d4];\nld.global.f32 %f2, [%d6];\nfma.rn.f32 %f0, %f1, %f2, %f0;\n"
	"add.u64 %d4, %d4, 4;\nadd.u64 %d6, %d6, %d7;\nadd.u32 %r10, %r10, 1;\n"
	"setp.lt.u32 %p0, %r10, %r0;\n@%p0 bra again;\n"
	"add.u32 %r11, %r9, %r4;\nmul.wide.u32 %d8, %r11, 4;\nadd.u64 %d9, %d2, %d8;\nst.global.f32 [%d9], %f0;\nret;\n}\n";

// matrices makes two, of which a product's elements are known: rows of 1, 2, … 7, 1, …
// times columns of 1, and room for the product.
static void matrices(address *a, address *b, address *c)
{
	size_t size = (size_t)N * N * sizeof(float);
	float *host = malloc(size);
	if (!host)
		failed("malloc", errno, NULL);
	check("cuMemAlloc", cuMemAlloc(a, size));
	check("cuMemAlloc", cuMemAlloc(b, size));
	check("cuMemAlloc", cuMemAlloc(c, size));
	for (size_t i = 0; i < (size_t)N * N; i++)
		host[i] = 1 + i % 7;
	check("cuMemcpyHtoD", cuMemcpyHtoD(*a, host, size));
	for (size_t i = 0; i < (size_t)N * N; i++)
		host[i] = 1;
	check("cuMemcpyHtoD", cuMemcpyHtoD(*b, host, size));
	free(host);
}

// report checks one row of the product, and prints the best of the times.
static void report(address c, double best)
{
	size_t size = (size_t)N * N * sizeof(float);
	float *host = malloc(size);
	if (!host)
		failed("malloc", errno, NULL);
	check("cuMemcpyDtoH", cuMemcpyDtoH(host, c, size));
	for (size_t row = 0; row < N; row += 97) {
		double want = 0;
		for (size_t k = 0; k < N; k++)
			want += 1 + (row * N + k) % 7;
		float got = host[row * N + 5];
		if (got < want * 0.99 || got > want * 1.01) {
			printf("product: row %zu is %g and not %g\n", row, got, want);
			exit(1);
		}
	}
	printf("gflops %.1f\n", 2.0 * N * N * N / best / 1e9);
}

static int product(void)
{
	address a, b, c;
	void *module, *function;
	unsigned n = N;
	double best = 1e9;
	context();
	matrices(&a, &b, &c);
	check("cuModuleLoadData", cuModuleLoadData(&module, kernel));
	check("cuModuleGetFunction", cuModuleGetFunction(&function, module, "product"));
	for (int i = 0; i < RUNS; i++) {
		void *args[] = {&a, &b, &c, &n};
		double begin = now();
		check("cuLaunchKernel", cuLaunchKernel(function, N / 32, N / 8, 1, 32, 8, 1, 0, NULL, args, NULL));
		check("cuCtxSynchronize", cuCtxSynchronize());
		if (now() - begin < best)
			best = now() - begin;
	}
	report(c, best);
	return 0;
}

static int blas(void)
{
	static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", NULL};
	int (*create)(void **), (*gemm)(void *, int, int, int, int, int, const float *, address, int, address, int, const float *, address, int);
	address a, b, c;
	void *lib, *handle;
	const float one = 1, zero = 0;
	double best = 1e9;
	int code;
	context();
	lib = library(names);
	*(void **)&create = symbol(lib, "cublasCreate_v2");
	*(void **)&gemm = symbol(lib, "cublasSgemm_v2");
	matrices(&a, &b, &c);
	if ((code = create(&handle)))
		failed("cublasCreate", code, NULL);
	for (int i = 0; i < RUNS; i++) {
		double begin = now();
		// By columns: the transposed factors in the other order.
		if ((code = gemm(handle, 0, 0, N, N, N, &one, b, N, a, N, &zero, c, N)))
			failed("cublasSgemm", code, NULL);
		check("cuCtxSynchronize", cuCtxSynchronize());
		if (now() - begin < best)
			best = now() - begin;
	}
	report(c, best);
	return 0;
}

static int nccl(void)
{
	static const char *const names[] = {"libnccl.so.2", NULL};
	typedef struct { char bytes[128]; } unique;
	enum { count = 1024, sum = 0, floats = 7 };
	int (*getId)(unique *), (*init)(void **, int, unique, int), (*reduce)(const void *, void *, size_t, int, int, void *, void *),
		(*destroy)(void *), (*version)(int *);
	const char *(*word)(int);
	float host[count];
	address buffer;
	unique id;
	void *lib, *comm;
	int code, v = 0;
	context();
	lib = library(names);
	*(void **)&getId = symbol(lib, "ncclGetUniqueId");
	*(void **)&init = symbol(lib, "ncclCommInitRank");
	*(void **)&reduce = symbol(lib, "ncclAllReduce");
	*(void **)&destroy = symbol(lib, "ncclCommDestroy");
	*(void **)&version = symbol(lib, "ncclGetVersion");
	*(void **)&word = symbol(lib, "ncclGetErrorString");
	version(&v);
	if ((code = getId(&id)))
		failed("ncclGetUniqueId", code, word(code));
	if ((code = init(&comm, 1, id, 0)))
		failed("ncclCommInitRank", code, word(code));
	for (int i = 0; i < count; i++)
		host[i] = i;
	check("cuMemAlloc", cuMemAlloc(&buffer, sizeof host));
	check("cuMemcpyHtoD", cuMemcpyHtoD(buffer, host, sizeof host));
	if ((code = reduce((void *)buffer, (void *)buffer, count, floats, sum, comm, NULL)))
		failed("ncclAllReduce", code, word(code));
	check("cuCtxSynchronize", cuCtxSynchronize());
	memset(host, 0, sizeof host);
	check("cuMemcpyDtoH", cuMemcpyDtoH(host, buffer, sizeof host));
	for (int i = 0; i < count; i++)
		if (host[i] != i)
			failed("the sum", i, "is wrong");
	if ((code = destroy(comm)))
		failed("ncclCommDestroy", code, word(code));
	printf("nccl %d agrees\n", v);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(what, "devices"))
		return devices();
	if (!strcmp(what, "rules"))
		return rules();
	if (!strcmp(what, "product"))
		return product();
	if (!strcmp(what, "blas"))
		return blas();
	if (!strcmp(what, "nccl"))
		return nccl();
	fprintf(stderr, "usage: probe devices|rules|product|blas|nccl\n");
	return 2;
}
