/* nvidia-smi for simulated nodes: -L, a table, and a few fields of --query-gpu. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../nvml/abi.h"

#define CALL(name, ...) (((ret(*)())need(name))(__VA_ARGS__))

static void *lib;

static void *need(const char *name) {
	void *f = dlsym(lib, name);
	if (!f) {
		fprintf(stderr, "nvidia-smi: %s\n", dlerror());
		exit(12);
	}
	return f;
}

static const char *words(ret r) { return ((const char *(*)(ret))need("nvmlErrorString"))(r); }

static int list(uint n) {
	for (uint i = 0; i < n; i++) {
		device d, mig;
		char name[96] = "", uuid[96] = "";
		ret r = CALL("nvmlDeviceGetHandleByIndex_v2", i, &d);
		if (r != OK) {
			printf("Unable to determine the device handle for gpu %u: %s\n", i, words(r));
			continue;
		}
		CALL("nvmlDeviceGetName", d, name, sizeof name);
		CALL("nvmlDeviceGetUUID", d, uuid, sizeof uuid);
		printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
		for (uint k = 0; k < 7 && CALL("nvmlDeviceGetMigDeviceHandleByIndex", d, k, &mig) == OK; k++) {
			CALL("nvmlDeviceGetName", mig, name, sizeof name);
			CALL("nvmlDeviceGetUUID", mig, uuid, sizeof uuid);
			const char *profile = strstr(name, "MIG ");
			printf("  MIG %-13s Device %2u: (UUID: %s)\n", profile ? profile + 4 : "", k, uuid);
		}
	}
	return 0;
}

static void field(const char *name, uint i, device d, const char *driver, int units) {
	char text[128] = "";
	memory m = {0, 0, 0};
	pci_info pci = {.domain = 0};
	uint number = 0;
	CALL("nvmlDeviceGetMemoryInfo", d, &m);
	if (!strcmp(name, "index"))
		printf("%u", i);
	else if (!strcmp(name, "name") && CALL("nvmlDeviceGetName", d, text, sizeof text) == OK)
		printf("%s", text);
	else if (!strcmp(name, "uuid") && CALL("nvmlDeviceGetUUID", d, text, sizeof text) == OK)
		printf("%s", text);
	else if (!strcmp(name, "pci.bus_id") && CALL("nvmlDeviceGetPciInfo_v3", d, &pci) == OK)
		printf("%s", pci.address);
	else if (!strcmp(name, "driver_version"))
		printf("%s", driver);
	else if (!strcmp(name, "count") && CALL("nvmlDeviceGetCount_v2", &number) == OK)
		printf("%u", number);
	else if (!strncmp(name, "memory.", 7))
		printf("%llu%s", (name[7] == 't' ? m.total : name[7] == 'u' ? m.used : m.free) >> 20, units ? " MiB" : "");
	else
		printf("[N/A]");
}

static int query(uint n, const char *fields, const char *format, const char *driver) {
	if (!strstr(format, "noheader"))
		printf("%s\n", fields);
	for (uint i = 0; i < n; i++) {
		char copy[512];
		device d;
		ret r = CALL("nvmlDeviceGetHandleByIndex_v2", i, &d);
		if (r != OK) {
			printf("Unable to determine the device handle for gpu %u: %s\n", i, words(r));
			continue;
		}
		snprintf(copy, sizeof copy, "%s", fields);
		for (char *rest = copy, *name; (name = strsep(&rest, ","));) {
			field(name, i, d, driver, !strstr(format, "nounits"));
			printf("%s", rest ? ", " : "\n");
		}
	}
	return 0;
}

static int table(uint n, const char *driver) {
	char host[65] = "";
	int cuda = 0;
	gethostname(host, sizeof host - 1);
	CALL("nvmlSystemGetCudaDriverVersion_v2", &cuda);
	printf("SIMULATED on %s   Driver %s   CUDA %d.%d\n", host, driver, cuda / 1000, cuda % 1000 / 10);
	printf("%-4s %-28s %-17s %s\n", "GPU", "Name", "Bus-Id", "Memory-Usage");
	for (uint i = 0; i < n; i++) {
		device d;
		char name[96] = "";
		pci_info pci = {.domain = 0};
		memory m = {0, 0, 0};
		ret r = CALL("nvmlDeviceGetHandleByIndex_v2", i, &d);
		if (r != OK) {
			printf("%-4u %s\n", i, words(r));
			continue;
		}
		CALL("nvmlDeviceGetName", d, name, sizeof name);
		CALL("nvmlDeviceGetPciInfo_v3", d, &pci);
		CALL("nvmlDeviceGetMemoryInfo", d, &m);
		printf("%-4u %-28s %-17s %lluMiB / %lluMiB\n", i, name, pci.address, m.used >> 20, m.total >> 20);
	}
	return 0;
}

int main(int argc, char **argv) {
	char driver[96] = "";
	const char *fields = NULL, *format = "";
	uint n = 0;
	int only_list = 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus"))
			only_list = 1;
		else if (!strncmp(argv[i], "--query-gpu=", 12))
			fields = argv[i] + 12;
		else if (!strncmp(argv[i], "--format=", 9))
			format = argv[i] + 9;
		else {
			fprintf(stderr, "nvidia-smi (simulated): unknown argument %s\n", argv[i]);
			return 2;
		}
	}
	if (!(lib = dlopen("libnvidia-ml.so.1", RTLD_NOW))) {
		printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system: %s\n", dlerror());
		return 12;
	}
	ret r = CALL("nvmlInit_v2");
	if (r != OK) {
		printf("NVIDIA-SMI has failed (simulated): %s\n", words(r));
		return r;
	}
	CALL("nvmlDeviceGetCount_v2", &n);
	CALL("nvmlSystemGetDriverVersion", driver, sizeof driver);
	if (n == 0) {
		printf("No devices were found\n");
		return 6;
	}
	return only_list ? list(n) : fields ? query(n, fields, format, driver) : table(n, driver);
}
