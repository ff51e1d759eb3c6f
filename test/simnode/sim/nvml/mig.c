/* Multi-instance GPUs. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a line sN of the state holds. */
struct slice {
	char uuid[80], profile[32];
	uint gi, ci, multiproc, gi_slices, ci_slices, engines[5], gi_profile;
	u64 bytes;
};

static int slice_at(int gpu, int i, struct slice *s) {
	return sscanf(state("g%d.s%d", gpu, i), "%79s %u %u %llu %u %u %u %u %u %u %u %u %u %*s %31s", s->uuid, &s->gi, &s->ci,
	              &s->bytes, &s->multiproc, &s->gi_slices, &s->ci_slices, &s->engines[0], &s->engines[1], &s->engines[2],
	              &s->engines[3], &s->engines[4], &s->gi_profile, s->profile) == 14;
}

/* cap is the minor of an instance's capability: see /proc/driver/nvidia-caps. */
static uint cap(int gpu, uint gi) { return 3 + ((uint)number("g%d.minor", gpu) * 15 + gi) * 9; }

/* slice_shown says whether both capabilities of a slice can be opened. */
static int slice_shown(int gpu, const struct slice *s) {
	uint gi = cap(gpu, s->gi);
	return shown("/dev/nvidia-caps/nvidia-cap%u", gi) && shown("/dev/nvidia-caps/nvidia-cap%u", gi + 1 + s->ci);
}

static ret enter_capable(const char *function, device d) {
	ret r = enter_whole(function, d);
	if (r == OK && !number("g%d.migcapable", d->gpu))
		return leave(NOT_SUPPORTED);
	return r;
}

ret nvmlDeviceGetMigMode(device d, uint *now, uint *pending) {
	ret r = enter_capable(__func__, d);
	if (r != OK)
		return r;
	if (!now || !pending)
		return leave(INVALID_ARGUMENT);
	*now = *pending = (uint)number("g%d.mig", d->gpu);
	return leave(OK);
}

ret nvmlDeviceGetMaxMigDeviceCount(device d, uint *n) {
	ret r = enter_whole(__func__, d);
	if (r != OK)
		return r;
	if (!n)
		return leave(INVALID_ARGUMENT);
	*n = number("g%d.migcapable", d->gpu) ? 7 : 0;
	return leave(OK);
}

ret nvmlDeviceGetMigDeviceHandleByIndex(device d, uint index, device *mig) {
	ret r = enter_capable(__func__, d);
	if (r != OK)
		return r;
	if (!mig || index >= 7)
		return leave(INVALID_ARGUMENT);
	int n = (int)number("g%d.slices", d->gpu);
	for (int i = 0; i < n; i++) {
		struct slice s;
		if (slice_at(d->gpu, i, &s) && slice_shown(d->gpu, &s) && index-- == 0)
			return leave((*mig = part(d->gpu, i)) ? OK : NOT_FOUND);
	}
	return leave(NOT_FOUND);
}

ret nvmlDeviceIsMigDeviceHandle(device d, uint *is) {
	ret r = enter_gpu(__func__, d);
	if (r != OK)
		return r;
	if (!is)
		return leave(INVALID_ARGUMENT);
	*is = d->slice != NONE;
	return leave(OK);
}

/* enter_slice begins a call on a MIG device. */
static ret enter_slice(const char *function, device d, struct slice *s) {
	ret r = enter_gpu(function, d);
	if (r != OK)
		return r;
	if (d->slice == NONE || !slice_at(d->gpu, d->slice, s))
		return leave(INVALID_ARGUMENT);
	return OK;
}

ret nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device d, device *parent) {
	struct slice s;
	ret r = enter_slice(__func__, d, &s);
	if (r != OK)
		return r;
	if (!parent)
		return leave(INVALID_ARGUMENT);
	return leave((*parent = whole(d->gpu)) ? OK : NOT_FOUND);
}

ret nvmlDeviceGetGpuInstanceId(device d, uint *id) {
	struct slice s;
	ret r = enter_slice(__func__, d, &s);
	if (r != OK)
		return r;
	if (!id)
		return leave(INVALID_ARGUMENT);
	*id = s.gi;
	return leave(OK);
}

ret nvmlDeviceGetComputeInstanceId(device d, uint *id) {
	struct slice s;
	ret r = enter_slice(__func__, d, &s);
	if (r != OK)
		return r;
	if (!id)
		return leave(INVALID_ARGUMENT);
	*id = s.ci;
	return leave(OK);
}

ret nvmlDeviceGetAttributes_v2(device d, attributes *a) {
	struct slice s;
	ret r = enter_slice(__func__, d, &s);
	if (r != OK)
		return r;
	if (!a)
		return leave(INVALID_ARGUMENT);
	*a = (attributes){s.multiproc, s.engines[0], s.engines[1], s.engines[2], s.engines[3], s.engines[4],
	                  s.gi_slices, s.ci_slices, s.bytes >> 20};
	return leave(OK);
}

ret nvmlDeviceGetAttributes(device d, attributes *a) { return nvmlDeviceGetAttributes_v2(d, a); }

/* What a line fN of the state holds. */
struct profile {
	uint kind, id, slices, max, multiproc, engines[5], mib, size, starts[8];
	char name[32];
	int start_count;
};

static int profile_at(int gpu, int i, struct profile *p) {
	int read = 0;
	const char *line = state("g%d.f%d", gpu, i);
	if (sscanf(line, "%u %u %u %u %u %u %u %u %u %u %u %u %31s %d%n", &p->kind, &p->id, &p->slices, &p->max, &p->multiproc,
	           &p->engines[0], &p->engines[1], &p->engines[2], &p->engines[3], &p->engines[4], &p->mib, &p->size, p->name,
	           &p->start_count, &read) != 14 || p->start_count > 8)
		return 0;
	char *at = (char *)line + read;
	for (int k = 0; k < p->start_count; k++)
		p->starts[k] = (uint)strtoul(at, &at, 10);
	return 1;
}

static int by_kind(int gpu, uint kind, struct profile *p) {
	int n = (int)number("g%d.profiles", gpu);
	for (int i = 0; i < n; i++)
		if (profile_at(gpu, i, p) && p->kind == kind)
			return 1;
	return 0;
}

static int by_id(int gpu, uint id, struct profile *p) {
	int n = (int)number("g%d.profiles", gpu);
	for (int i = 0; i < n; i++)
		if (profile_at(gpu, i, p) && p->id == id)
			return 1;
	return 0;
}

/* enter_profile begins a call on a GPU instance profile. */
static ret enter_profile(const char *function, device d, uint kind, struct profile *p) {
	ret r = enter_capable(function, d);
	if (r != OK)
		return r;
	if (kind > 0x10)
		return leave(INVALID_ARGUMENT);
	return by_kind(d->gpu, kind, p) ? OK : leave(NOT_SUPPORTED);
}

ret nvmlDeviceGetGpuInstanceProfileInfo(device d, uint kind, gi_profile *info) {
	struct profile p;
	ret r = enter_profile(__func__, d, kind, &p);
	if (r != OK)
		return r;
	if (!info)
		return leave(INVALID_ARGUMENT);
	const uint *e = p.engines;
	*info = (gi_profile){p.id, 0, p.slices, p.max, p.multiproc, e[0], e[1], e[2], e[3], e[4], p.mib};
	return leave(OK);
}

ret nvmlDeviceGetGpuInstanceProfileInfoV(device d, uint kind, gi_profile_v2 *info) {
	struct profile p;
	ret r = enter_profile(__func__, d, kind, &p);
	if (r != OK)
		return r;
	if (!info)
		return leave(INVALID_ARGUMENT);
	const uint *e = p.engines;
	if (info->version == STRUCT_VERSION(gi_profile_v2, 2)) {
		*info = (gi_profile_v2){info->version, p.id, 0, p.slices, p.max, p.multiproc, e[0], e[1], e[2], e[3], e[4], p.mib, ""};
		snprintf(info->name, sizeof info->name, "MIG %s", p.name);
		return leave(OK);
	}
	if (info->version == STRUCT_VERSION(gi_profile_v3, 3)) {
		gi_profile_v3 *v3 = (gi_profile_v3 *)info;
		*v3 = (gi_profile_v3){v3->version, p.id, p.slices, p.max, p.multiproc, e[0], e[1], e[2], e[3], e[4], p.mib, "", 0};
		snprintf(v3->name, sizeof v3->name, "MIG %s", p.name);
		return leave(OK);
	}
	return leave(VERSION_MISMATCH);
}

/* What a line iN of the state holds. */
struct gi {
	uint id, profile, start, size, count, compute[8];
};

static int gi_at(int gpu, int i, struct gi *g) {
	int read = 0;
	const char *line = state("g%d.i%d", gpu, i);
	if (sscanf(line, "%u %u %u %u %u%n", &g->id, &g->profile, &g->start, &g->size, &g->count, &read) != 5 || g->count > 8)
		return 0;
	char *at = (char *)line + read;
	for (uint k = 0; k < g->count; k++)
		g->compute[k] = (uint)strtoul(at, &at, 10);
	return 1;
}

static int gi_by_id(int gpu, uint id, struct gi *g) {
	int n = (int)number("g%d.instances", gpu);
	for (int i = 0; i < n; i++)
		if (gi_at(gpu, i, g) && g->id == id)
			return 1;
	return 0;
}

ret nvmlDeviceGetGpuInstances(device d, uint profile, instance *list, uint *n) {
	ret r = enter_capable(__func__, d);
	if (r != OK)
		return r;
	if (!list || !n)
		return leave(INVALID_ARGUMENT);
	int all = (int)number("g%d.instances", d->gpu);
	*n = 0;
	for (int i = 0; i < all; i++) {
		struct gi g;
		if (gi_at(d->gpu, i, &g) && g.profile == profile)
			list[(*n)++] = instance_of(d->gpu, g.id, NONE);
	}
	return leave(OK);
}

ret nvmlDeviceGetGpuInstanceById(device d, uint id, instance *in) {
	struct gi g;
	ret r = enter_capable(__func__, d);
	if (r != OK)
		return r;
	if (!in)
		return leave(INVALID_ARGUMENT);
	if (!gi_by_id(d->gpu, id, &g))
		return leave(NOT_FOUND);
	*in = instance_of(d->gpu, (int)id, NONE);
	return leave(OK);
}

ret nvmlDeviceGetGpuInstanceRemainingCapacity(device d, uint profile, uint *n) {
	struct profile p;
	uint used = 0;
	ret r = enter_capable(__func__, d);
	if (r != OK)
		return r;
	if (!n || !by_id(d->gpu, profile, &p))
		return leave(INVALID_ARGUMENT);
	int all = (int)number("g%d.instances", d->gpu);
	for (int i = 0; i < all; i++) {
		struct gi g;
		if (gi_at(d->gpu, i, &g))
			used |= ((1u << g.size) - 1) << g.start;
	}
	*n = 0;
	for (int k = 0; k < p.start_count; k++)
		*n += !(used & ((1u << p.size) - 1) << p.starts[k]);
	return leave(OK);
}

/* enter_instance begins a call on an instance, which must still be there. */
static ret enter_instance(const char *function, instance in, struct gi *g) {
	if (!in)
		return INVALID_ARGUMENT;
	struct device parent = {.gpu = in->gpu, .slice = NONE};
	ret r = enter_gpu(function, &parent);
	if (r != OK)
		return r;
	if (!gi_by_id(in->gpu, (uint)in->id, g) || in->ci >= (int)g->count)
		return leave(INVALID_ARGUMENT);
	return OK;
}

ret nvmlGpuInstanceGetInfo(instance in, gi_info *info) {
	struct gi g;
	ret r = enter_instance(__func__, in, &g);
	if (r != OK)
		return r;
	if (!info)
		return leave(INVALID_ARGUMENT);
	*info = (gi_info){whole(in->gpu), g.id, g.profile, {g.start, g.size}};
	return leave(OK);
}

/* compute_kind is NVML's name for a compute instance of so many slices; it is
 * the profile's id within the GPU instance as well. */
static uint compute_kind(uint slices) { return slices <= 4 ? slices - 1 : 4; }

ret nvmlGpuInstanceGetComputeInstanceProfileInfo(instance in, uint kind, uint engines, ci_profile *info) {
	struct gi g;
	struct profile p;
	static const uint sizes[] = {1, 2, 3, 4, 7};
	ret r = enter_instance(__func__, in, &g);
	if (r != OK)
		return r;
	if (!info || engines != 0 || kind > 7)
		return leave(INVALID_ARGUMENT);
	if (kind > 4 || !by_id(in->gpu, g.profile, &p) || sizes[kind] > p.slices)
		return leave(NOT_SUPPORTED);
	const uint *e = p.engines, n = sizes[kind];
	*info = (ci_profile){kind, n, p.slices / n, p.multiproc * n / p.slices, e[0], e[1], e[2], e[3], e[4]};
	return leave(OK);
}

ret nvmlGpuInstanceGetComputeInstances(instance in, uint kind, instance *list, uint *n) {
	struct gi g;
	ret r = enter_instance(__func__, in, &g);
	if (r != OK)
		return r;
	if (!list || !n)
		return leave(INVALID_ARGUMENT);
	*n = 0;
	for (uint i = 0; i < g.count; i++)
		if (compute_kind(g.compute[i]) == kind)
			list[(*n)++] = instance_of(in->gpu, in->id, (int)i);
	return leave(OK);
}

ret nvmlGpuInstanceGetComputeInstanceById(instance in, uint id, instance *ci) {
	struct gi g;
	ret r = enter_instance(__func__, in, &g);
	if (r != OK)
		return r;
	if (!ci)
		return leave(INVALID_ARGUMENT);
	if (id >= g.count)
		return leave(NOT_FOUND);
	*ci = instance_of(in->gpu, in->id, (int)id);
	return leave(OK);
}

static ret compute_info(const char *function, instance ci, ci_info *info) {
	struct gi g;
	uint start = 0;
	ret r = enter_instance(function, ci, &g);
	if (r != OK)
		return r;
	if (!info || ci->ci == NONE)
		return leave(INVALID_ARGUMENT);
	for (int i = 0; i < ci->ci; i++)
		start += g.compute[i];
	uint size = g.compute[ci->ci];
	*info = (ci_info){whole(ci->gpu), instance_of(ci->gpu, ci->id, NONE), (uint)ci->ci, compute_kind(size), {start, size}};
	return leave(OK);
}

ret nvmlComputeInstanceGetInfo_v2(instance ci, ci_info *info) { return compute_info(__func__, ci, info); }
