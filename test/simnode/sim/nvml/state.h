/* How the library comes to know of its node. All of it needs the lock that
 * enter takes and leave gives back. */
#ifndef SIMNODE_STATE_H
#define SIMNODE_STATE_H

#include "abi.h"

/* enter begins a call: it locks, reads the node's state anew if it changed, and
 * hangs or fails as the node was told to. On an error nothing stays locked. */
ret enter(const char *function);

/* enter_gpu is enter for calls on a GPU or a MIG device, which must be there. */
ret enter_gpu(const char *function, device d);

/* enter_whole is enter_gpu for calls that a MIG device doesn't know. */
ret enter_whole(const char *function, device d);

/* leave ends a call. */
ret leave(ret r);

/* initialized counts nvmlInit; it is the only state that isn't the node's. */
extern int initialized;

/* state returns the value of a key, "" if there is none; number its first number. */
const char *state(const char *format, ...) __attribute__((format(printf, 1, 2)));
u64 number(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* put copies a string to a caller's buffer. */
ret put(char *to, uint size, const char *from);

/* shown says whether a node may be opened. Outside of the node's own state
 * directory (in a container) what can't be opened isn't shown. */
int shown(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* simulated_at says where the state came from, for people. */
const char *simulated_at(void);

struct device {
	int gpu;   /* place in the node's state */
	int slice; /* NONE for a whole GPU */
	char uuid[80];
};

struct instance {
	int gpu, id, ci; /* ci is NONE for a GPU instance */
};

device whole(int gpu);                         /* handle of a GPU */
device part(int gpu, int slice);               /* handle of its MIG device */
instance instance_of(int gpu, int id, int ci); /* handle of an instance */
int refresh(device d);                         /* find a MIG device again; 0 if it is gone */

#endif
