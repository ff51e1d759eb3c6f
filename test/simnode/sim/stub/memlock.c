/* Preloaded into crun on machines whose root lacks CAP_SYS_RESOURCE: crun asks
 * for unlimited locked memory before it loads a device program, which kernels
 * since 5.11 don't need, and gives up when it doesn't get it. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int setrlimit(__rlimit_resource_t what, const struct rlimit *limit) {
	int r = (int)syscall(SYS_prlimit64, 0, what, limit, NULL);
	if (r < 0 && errno == EPERM && what == RLIMIT_MEMLOCK && !strcmp(program_invocation_short_name, "crun"))
		return 0;
	return r;
}

int setrlimit64(__rlimit_resource_t what, const struct rlimit64 *limit) {
	return setrlimit(what, (const struct rlimit *)limit);
}
