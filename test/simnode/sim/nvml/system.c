/* Calls on the node, and how handles are got. */
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

ret nvmlInitWithFlags(uint flags) {
	(void)flags;
	ret r = enter("nvmlInit_v2");
	if (r != OK)
		return r;
	if (!shown("/dev/nvidiactl"))
		return leave(DRIVER_NOT_LOADED);
	initialized++;
	return leave(OK);
}

ret nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ret nvmlInit(void) { return nvmlInitWithFlags(0); }

ret nvmlShutdown(void) {
	ret r = enter(__func__);
	if (r != OK)
		return r;
	initialized--;
	return leave(OK);
}

ret nvmlSystemGetDriverVersion(char *to, uint size) {
	ret r = enter(__func__);
	return r != OK ? r : leave(put(to, size, state("system.driver")));
}

ret nvmlSystemGetNVMLVersion(char *to, uint size) {
	ret r = enter(__func__);
	return r != OK ? r : leave(put(to, size, state("system.nvml")));
}

static ret cuda(const char *function, int *version) {
	ret r = enter(function);
	if (r != OK)
		return r;
	if (!version)
		return leave(INVALID_ARGUMENT);
	*version = (int)number("system.cuda");
	return leave(OK);
}

ret nvmlSystemGetCudaDriverVersion(int *version) { return cuda(__func__, version); }
ret nvmlSystemGetCudaDriverVersion_v2(int *version) { return cuda(__func__, version); }

ret nvmlSystemGetProcessName(uint pid, char *to, uint size) {
	char path[64], name[256] = "";
	ret r = enter(__func__);
	if (r != OK)
		return r;
	snprintf(path, sizeof path, "/proc/%u/comm", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return leave(NOT_FOUND);
	if (fgets(name, sizeof name, f))
		name[strcspn(name, "\n")] = 0;
	fclose(f);
	return leave(put(to, size, name));
}

/* nth returns the place of the index-th GPU that is shown, NONE if there are
 * fewer. An index counts what is shown, as in a container. */
static int nth(uint index) {
	int n = (int)number("system.gpus");
	for (int i = 0; i < n; i++)
		if (shown("/dev/nvidia%d", (int)number("g%d.minor", i)) && index-- == 0)
			return i;
	return NONE;
}

static ret count(const char *function, uint *n) {
	ret r = enter(function);
	if (r != OK)
		return r;
	if (!n)
		return leave(INVALID_ARGUMENT);
	for (*n = 0; nth(*n) != NONE;)
		++*n;
	return leave(OK);
}

ret nvmlDeviceGetCount_v2(uint *n) { return count(__func__, n); }
ret nvmlDeviceGetCount(uint *n) { return count("nvmlDeviceGetCount_v2", n); }

/* give hands out a GPU's handle; a lost one has none. It ends the call. */
static ret give(int gpu, device *d) {
	if (number("g%d.lost", gpu))
		return leave(GPU_IS_LOST);
	*d = whole(gpu);
	return leave(*d ? OK : NOT_FOUND);
}

ret nvmlDeviceGetHandleByIndex_v2(uint index, device *d) {
	ret r = enter("nvmlDeviceGetCount_v2");
	if (r != OK)
		return r;
	int gpu = nth(index);
	leave(OK);
	if (gpu == NONE || !d)
		return INVALID_ARGUMENT;
	struct device asked = {.gpu = gpu, .slice = NONE};
	r = enter_gpu(__func__, &asked); /* may hang or fail for this GPU alone */
	return r != OK ? r : give(gpu, d);
}

ret nvmlDeviceGetHandleByIndex(uint index, device *d) { return nvmlDeviceGetHandleByIndex_v2(index, d); }

ret nvmlDeviceGetHandleByUUID(const char *uuid, device *d) {
	ret r = enter(__func__);
	if (r != OK)
		return r;
	if (!uuid || !d)
		return leave(INVALID_ARGUMENT);
	for (uint i = 0; nth(i) != NONE; i++) {
		int gpu = nth(i), slices = (int)number("g%d.slices", gpu);
		if (!strcmp(uuid, state("g%d.uuid", gpu)))
			return give(gpu, d);
		for (int s = 0; s < slices; s++) {
			const char *line = state("g%d.s%d", gpu, s);
			if (!strncmp(line, uuid, strlen(uuid)) && line[strlen(uuid)] == ' ')
				return leave((*d = part(gpu, s)) ? OK : NOT_FOUND);
		}
	}
	return leave(NOT_FOUND);
}

/* address reads "0000:1b:00.0", "00000000:1B:00.0" or "1b:00.0". */
static int address(const char *text, uint at[3]) {
	if (sscanf(text, "%x:%x:%x.", &at[0], &at[1], &at[2]) == 3)
		return 1;
	at[0] = 0;
	return sscanf(text, "%x:%x.", &at[1], &at[2]) == 2;
}

ret nvmlDeviceGetHandleByPciBusId_v2(const char *text, device *d) {
	uint asked[3], at[3];
	ret r = enter(__func__);
	if (r != OK)
		return r;
	if (!text || !d || !address(text, asked))
		return leave(INVALID_ARGUMENT);
	for (uint i = 0; nth(i) != NONE; i++)
		if (address(state("g%d.bus", nth(i)), at) && !memcmp(at, asked, sizeof at))
			return give(nth(i), d);
	return leave(NOT_FOUND);
}

ret nvmlDeviceGetHandleByPciBusId(const char *text, device *d) { return nvmlDeviceGetHandleByPciBusId_v2(text, d); }

ret nvmlDeviceGetIndex(device d, uint *index) {
	ret r = enter_gpu(__func__, d);
	if (r != OK)
		return r;
	if (!index)
		return leave(INVALID_ARGUMENT);
	if (d->slice != NONE) {
		*index = d->slice;
		return leave(OK);
	}
	for (*index = 0; nth(*index) != d->gpu;)
		++*index;
	return leave(OK);
}

const char *nvmlErrorString(ret r) {
	switch (r) {
	case 0: return "Success";
	case 1: return "Uninitialized";
	case 2: return "Invalid Argument";
	case 3: return "Not Supported";
	case 4: return "Insufficient Permissions";
	case 5: return "Already Initialized";
	case 6: return "Not Found";
	case 7: return "Insufficient Size";
	case 8: return "Insufficient External Power";
	case 9: return "Driver Not Loaded";
	case 10: return "Timeout";
	case 11: return "Interrupt Request Issue";
	case 12: return "NVML Shared Library Not Found";
	case 13: return "Function Not Found";
	case 14: return "Corrupted infoROM";
	case 15: return "GPU is lost";
	case 16: return "GPU requires reset";
	case 17: return "GPU access blocked by the operating system";
	case 18: return "Driver/library version mismatch";
	case 19: return "In use by another client";
	case 20: return "Insufficient Memory";
	case 21: return "No data";
	case 23: return "Insufficient Resources";
	case 25: return "Argument version mismatch";
	case 26: return "Deprecated";
	case 27: return "Not ready";
	case 28: return "GPU not found";
	}
	return "Unknown Error";
}
