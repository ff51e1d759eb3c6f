/* Calls on one GPU or MIG device. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* of_whole is a call that gives one number of a whole GPU. */
static ret of_whole(const char *function, device d, const char *key, uint *value) {
	ret r = enter_whole(function, d);
	if (r != OK)
		return r;
	if (!value)
		return leave(INVALID_ARGUMENT);
	*value = (uint)number("g%d.%s", d->gpu, key);
	return leave(OK);
}

/* constant is a call that gives the same for each GPU and MIG device. */
static ret constant(const char *function, device d, uint n, uint *value) {
	ret r = enter_gpu(function, d);
	if (r != OK)
		return r;
	if (!value)
		return leave(INVALID_ARGUMENT);
	*value = n;
	return leave(OK);
}

ret nvmlDeviceGetMinorNumber(device d, uint *n) { return of_whole(__func__, d, "minor", n); }
ret nvmlDeviceGetArchitecture(device d, uint *n) { return of_whole(__func__, d, "arch", n); }
ret nvmlDeviceGetBrand(device d, uint *n) { return of_whole(__func__, d, "brand", n); }
ret nvmlDeviceGetNumGpuCores(device d, uint *n) { return of_whole(__func__, d, "sms", n); }
ret nvmlDeviceGetNumaNodeId(device d, uint *n) { return of_whole(__func__, d, "numa", n); }
ret nvmlDeviceGetPersistenceMode(device d, uint *n) { return constant(__func__, d, 1, n); }
ret nvmlDeviceGetComputeMode(device d, uint *n) { return constant(__func__, d, 0, n); }
ret nvmlDeviceGetPerformanceState(device d, uint *n) { return constant(__func__, d, 0, n); }
ret nvmlDeviceGetPowerUsage(device d, uint *n) { return constant(__func__, d, 71000, n); }
ret nvmlDeviceGetEnforcedPowerLimit(device d, uint *n) { return constant(__func__, d, 700000, n); }
ret nvmlDeviceGetBoardId(device d, uint *n) { return constant(__func__, d, d ? d->gpu << 8 : 0, n); }
ret nvmlDeviceGetMultiGpuBoard(device d, uint *n) { return constant(__func__, d, 0, n); }
ret nvmlDeviceGetVirtualizationMode(device d, uint *n) { return constant(__func__, d, 0, n); }
ret nvmlDeviceGetGspFirmwareMode(device d, uint *on, uint *usual) {
	ret r = constant(__func__, d, 1, on);
	return r != OK ? r : constant(__func__, d, 1, usual);
}

ret nvmlDeviceGetTemperature(device d, uint sensor, uint *celsius) {
	if (sensor != 0)
		return INVALID_ARGUMENT;
	return constant(__func__, d, 31, celsius);
}

ret nvmlDeviceGetEccMode(device d, uint *now, uint *pending) {
	ret r = constant(__func__, d, 1, now);
	return r != OK ? r : constant(__func__, d, 1, pending);
}

ret nvmlDeviceGetUtilizationRates(device d, utilization *u) {
	ret r = enter_gpu(__func__, d);
	if (r != OK)
		return r;
	if (!u)
		return leave(INVALID_ARGUMENT);
	if (number("g%d.mig", d->gpu))
		return leave(NOT_SUPPORTED);
	uint busy = number("g%d.procs", d->gpu) ? 97 : 0;
	*u = (utilization){busy, busy / 2};
	return leave(OK);
}

ret nvmlDeviceGetUUID(device d, char *to, uint size) {
	ret r = enter_gpu(__func__, d);
	return r != OK ? r : leave(put(to, size, d->uuid));
}

ret nvmlDeviceGetName(device d, char *to, uint size) {
	char name[96], profile[32] = "";
	ret r = enter_gpu(__func__, d);
	if (r != OK)
		return r;
	snprintf(name, sizeof name, "%.60s", state("g%d.name", d->gpu));
	if (d->slice != NONE) {
		const char *line = state("g%d.s%d", d->gpu, d->slice), *last = strrchr(line, ' ');
		snprintf(profile, sizeof profile, " MIG %.24s", last ? last + 1 : "");
		strcat(name, profile);
	}
	return leave(put(to, size, name));
}

ret nvmlDeviceGetSerial(device d, char *to, uint size) {
	char serial[32];
	ret r = enter_whole(__func__, d);
	if (r != OK)
		return r;
	snprintf(serial, sizeof serial, "165342300%04d", d->gpu);
	return leave(put(to, size, serial));
}

ret nvmlDeviceGetVbiosVersion(device d, char *to, uint size) {
	ret r = enter_whole(__func__, d);
	return r != OK ? r : leave(put(to, size, "96.00.74.00.01"));
}

ret nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
	ret r = enter_gpu(__func__, d);
	if (r != OK)
		return r;
	if (!major || !minor || sscanf(state("g%d.cc", d->gpu), "%d.%d", major, minor) != 2)
		return leave(INVALID_ARGUMENT);
	return leave(OK);
}

static ret pci(const char *function, device d, pci_info *p) {
	ret r = enter_whole(function, d);
	if (r != OK)
		return r;
	if (!p)
		return leave(INVALID_ARGUMENT);
	memset(p, 0, sizeof *p);
	if (sscanf(state("g%d.bus", d->gpu), "%x:%x:%x.", &p->domain, &p->bus, &p->device) != 3)
		return leave(NOT_FOUND);
	snprintf(p->legacy, sizeof p->legacy, "%04X:%02X:%02X.0", p->domain & 0xffff, p->bus & 0xff, p->device & 0x1f);
	snprintf(p->address, sizeof p->address, "%08X:%02X:%02X.0", p->domain, p->bus, p->device);
	p->id = (uint)number("g%d.pciid", d->gpu);
	p->subsystem = (uint)number("g%d.pcisub", d->gpu);
	return leave(OK);
}

ret nvmlDeviceGetPciInfo_v3(device d, pci_info *p) { return pci(__func__, d, p); }
ret nvmlDeviceGetPciInfo_v2(device d, pci_info *p) { return pci(__func__, d, p); }
ret nvmlDeviceGetPciInfo(device d, pci_info *p) { return pci(__func__, d, p); }

ret nvmlDeviceGetPciInfoExt(device d, pci_info_ext *x) {
	pci_info p;
	if (!x)
		return INVALID_ARGUMENT;
	if (x->version != STRUCT_VERSION(pci_info_ext, 1))
		return VERSION_MISMATCH;
	ret r = pci(__func__, d, &p);
	if (r != OK)
		return r;
	*x = (pci_info_ext){x->version, p.domain, p.bus, p.device, p.id, p.subsystem, 3, 2, ""};
	memcpy(x->address, p.address, sizeof x->address);
	return OK;
}

/* sizes gives a device's memory; what processes hold counts for a whole GPU. */
static memory sizes(device d) {
	memory m = {0, 0, 0};
	if (d->slice != NONE) {
		sscanf(state("g%d.s%d", d->gpu, d->slice), "%*s %*s %*s %llu", &m.total);
		m.used = 13ull << 20;
	} else {
		m.total = number("g%d.mem", d->gpu);
		int n = (int)number("g%d.procs", d->gpu);
		m.used = 4ull << 20;
		for (int i = 0; i < n; i++) {
			u64 held = 0;
			sscanf(state("g%d.p%d", d->gpu, i), "%*s %llu", &held);
			m.used += held;
		}
	}
	m.free = m.total > m.used ? m.total - m.used : 0;
	return m;
}

/* RESERVED is what the driver keeps for itself; only the second version tells it from used memory. */
#define RESERVED (615ull << 20)

ret nvmlDeviceGetMemoryInfo(device d, memory *m) {
	ret r = enter_gpu(__func__, d);
	if (r != OK)
		return r;
	if (!m)
		return leave(INVALID_ARGUMENT);
	*m = sizes(d);
	m->used += RESERVED;
	m->free -= RESERVED;
	return leave(OK);
}

ret nvmlDeviceGetMemoryInfo_v2(device d, memory_v2 *m) {
	ret r = enter_gpu(__func__, d);
	if (r != OK)
		return r;
	if (!m)
		return leave(INVALID_ARGUMENT);
	if (m->version != STRUCT_VERSION(memory_v2, 2))
		return leave(VERSION_MISMATCH);
	memory now = sizes(d);
	*m = (memory_v2){m->version, now.total, RESERVED, now.free - RESERVED, now.used};
	return leave(OK);
}

/* processes fills in a list of either form; a list that is too short gives
 * INSUFFICIENT_SIZE and the size that is needed. */
static ret processes(const char *function, device d, uint *n, process *list, process_v1 *old) {
	ret r = enter_gpu(function, d);
	if (r != OK)
		return r;
	if (!n)
		return leave(INVALID_ARGUMENT);
	uint have = d->slice == NONE ? (uint)number("g%d.procs", d->gpu) : 0, room = *n;
	*n = have;
	if (have == 0)
		return leave(OK);
	if (room < have || (!list && !old))
		return leave(INSUFFICIENT_SIZE);
	for (uint i = 0; i < have; i++) {
		uint pid = 0;
		u64 held = 0;
		sscanf(state("g%d.p%u", d->gpu, i), "%u %llu", &pid, &held);
		if (list)
			list[i] = (process){pid, held, NOT_AVAILABLE, NOT_AVAILABLE};
		else
			old[i] = (process_v1){pid, held};
	}
	return leave(OK);
}

static ret no_processes(const char *function, device d, uint *n) { return constant(function, d, 0, n); }

ret nvmlDeviceGetComputeRunningProcesses_v3(device d, uint *n, process *list) { return processes(__func__, d, n, list, NULL); }
ret nvmlDeviceGetComputeRunningProcesses_v2(device d, uint *n, process *list) { return processes(__func__, d, n, list, NULL); }
ret nvmlDeviceGetComputeRunningProcesses(device d, uint *n, process_v1 *list) { return processes(__func__, d, n, NULL, list); }
ret nvmlDeviceGetGraphicsRunningProcesses_v3(device d, uint *n, process *list) { return (void)list, no_processes(__func__, d, n); }
ret nvmlDeviceGetGraphicsRunningProcesses_v2(device d, uint *n, process *list) { return (void)list, no_processes(__func__, d, n); }
ret nvmlDeviceGetGraphicsRunningProcesses(device d, uint *n, process_v1 *list) { return (void)list, no_processes(__func__, d, n); }
ret nvmlDeviceGetMPSComputeRunningProcesses_v3(device d, uint *n, process *list) { return (void)list, no_processes(__func__, d, n); }
ret nvmlDeviceGetMPSComputeRunningProcesses_v2(device d, uint *n, process *list) { return (void)list, no_processes(__func__, d, n); }
ret nvmlDeviceGetMPSComputeRunningProcesses(device d, uint *n, process_v1 *list) { return (void)list, no_processes(__func__, d, n); }

ret nvmlDeviceGetTopologyCommonAncestor(device a, device b, uint *level) {
	if (!b || !level)
		return INVALID_ARGUMENT;
	ret r = enter_whole(__func__, a);
	if (r != OK)
		return r;
	char *at = (char *)state("g%d.topo", a->gpu);
	for (int i = 0; i <= b->gpu; i++)
		*level = (uint)strtoul(at, &at, 10);
	return leave(OK);
}

/* enter_link begins a call on one NVLink of a GPU. */
static ret enter_link(const char *function, device d, uint link) {
	ret r = enter_whole(function, d);
	if (r != OK)
		return r;
	if (number("g%d.links", d->gpu) == 0)
		return leave(NOT_SUPPORTED);
	if (link >= number("g%d.links", d->gpu))
		return leave(INVALID_ARGUMENT);
	return OK;
}

/* link_value is a call that gives the same for each link. */
static ret link_value(const char *function, device d, uint link, uint n, uint *value) {
	ret r = enter_link(function, d, link);
	if (r != OK)
		return r;
	if (!value)
		return leave(INVALID_ARGUMENT);
	*value = n;
	return leave(OK);
}

ret nvmlDeviceGetNvLinkState(device d, uint link, uint *on) { return link_value(__func__, d, link, 1, on); }
ret nvmlDeviceGetNvLinkVersion(device d, uint link, uint *n) { return link_value(__func__, d, link, 4, n); }
ret nvmlDeviceGetNvLinkRemoteDeviceType(device d, uint link, uint *type) { return link_value(__func__, d, link, 2, type); }
ret nvmlDeviceGetNvLinkCapability(device d, uint link, uint which, uint *can) { return link_value(__func__, d, link, which < 5, can); }

static ret remote(const char *function, device d, uint link, pci_info *p) {
	ret r = enter_link(function, d, link);
	if (r != OK)
		return r;
	if (!p)
		return leave(INVALID_ARGUMENT);
	memset(p, 0, sizeof *p);
	if (sscanf(state("g%d.l%u", d->gpu, link), "%x:%x:%x.", &p->domain, &p->bus, &p->device) != 3)
		return leave(NOT_FOUND);
	p->id = 0x22a310de;
	snprintf(p->legacy, sizeof p->legacy, "%04X:%02X:%02X.0", p->domain & 0xffff, p->bus & 0xff, p->device & 0x1f);
	snprintf(p->address, sizeof p->address, "%08X:%02X:%02X.0", p->domain, p->bus, p->device);
	return leave(OK);
}

ret nvmlDeviceGetNvLinkRemotePciInfo_v2(device d, uint link, pci_info *p) { return remote(__func__, d, link, p); }
ret nvmlDeviceGetNvLinkRemotePciInfo(device d, uint link, pci_info *p) { return remote(__func__, d, link, p); }

ret nvmlDeviceGetP2PStatus(device a, device b, uint what, uint *status) {
	if (!b || !status)
		return INVALID_ARGUMENT;
	ret r = enter_whole(__func__, a);
	if (r != OK)
		return r;
	int linked = number("g%d.links", a->gpu) && number("g%d.links", b->gpu);
	*status = what == 2 && !linked ? 3 /* topology */ : 0; /* 2 asks for NVLink */
	return leave(OK);
}
