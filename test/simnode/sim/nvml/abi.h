/* The part of NVML's binary interface that the simulated library implements:
 * types, sizes and numbers, as programs that load libnvidia-ml.so.1 expect them. */
#ifndef SIMNODE_ABI_H
#define SIMNODE_ABI_H

typedef unsigned int uint;
typedef unsigned long long u64;
typedef int ret;

enum {
	OK = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	GPU_IS_LOST = 15,
	VERSION_MISMATCH = 25,
};

enum { NONE = -1 };
#define NOT_AVAILABLE 0xFFFFFFFFu

struct device;
struct instance;
typedef struct device *device;
typedef struct instance *instance; /* of a GPU or of compute */

typedef struct {
	char legacy[16];
	uint domain, bus, device, id, subsystem;
	char address[32];
} pci_info;

typedef struct {
	uint version, domain, bus, device, id, subsystem, base_class, sub_class;
	char address[32];
} pci_info_ext;

typedef struct { u64 total, free, used; } memory;
typedef struct { uint version; u64 total, reserved, free, used; } memory_v2;
typedef struct { uint gpu, memory; } utilization;
typedef struct { uint pid; u64 memory; } process_v1;
typedef struct { uint pid; u64 memory; uint gi, ci; } process;

typedef struct {
	uint multiproc, copy, decode, encode, jpeg, ofa, gi_slices, ci_slices;
	u64 mib;
} attributes;

typedef struct { uint start, size; } placement;
typedef struct { device parent; uint id, profile; placement place; } gi_info;
typedef struct { device parent; instance gi; uint id, profile; placement place; } ci_info;

typedef struct {
	uint id, p2p, slices, instances, multiproc, copy, decode, encode, jpeg, ofa;
	u64 mib;
} gi_profile;

typedef struct {
	uint version, id, p2p, slices, instances, multiproc, copy, decode, encode, jpeg, ofa;
	u64 mib;
	char name[96];
} gi_profile_v2;

typedef struct {
	uint version, id, slices, instances, multiproc, copy, decode, encode, jpeg, ofa;
	u64 mib;
	char name[96];
	uint capabilities;
} gi_profile_v3;

typedef struct { uint id, slices, instances, multiproc, copy, decode, encode, jpeg, ofa; } ci_profile;

#define STRUCT_VERSION(type, n) ((uint)(sizeof(type) | ((n) << 24U)))

#endif
