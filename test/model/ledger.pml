/*
 * A model of berth's protocol: ledger × tables of the device guard × cgroups. `make model` checks it with spin; run.sh has
 * the configurations, their bounds, and the mutants that must fail.
 *
 * Actors are processes of berth: berth alloc, berth-broker and berth adopt, a release, a reap, an eviction. Between any two
 * of an actor's steps, kill -9 can end it. Tenants are all other processes: they open, close and pass devices, fork and end.
 *
 * One step of the model is one action that others can observe: a rename, a write to a BPF map, a read of /proc. A step
 * names the Go function that it stands for. A lease has one device and one cgroup, so the number of the cgroup identifies
 * the lease. A number is used again only when nothing names it any more, because the kernel never reuses a cgroup's id.
 *
 * Safety, as assertions:
 *   S1  no two leases in the ledger have the same device                              (checkLedger)
 *   S2  a tenant opens only a device of a lease whose cgroup it is in                 (tenantOpens)
 *   S3  no device is granted that a process has open, other than the adopted one      (writeLedger)
 *   S4  the guard's tables open, in an existing cgroup, only what the ledger grants   (checkTables)
 *   S5  no lease ends while a process has open what it has opened by that lease       (writeLedger)
 * Liveness, as assertions about one further command (a "probe") in each state in which no command runs, in particular
 * after each kill:
 *   L1  a tenant in the cgroup of a lease can open the lease's device                 (checkHolders)
 *   L2  the next request gets a device whose holder has ended and that nothing has open, and can open it
 *   L3  a process that has a lease and isn't in its cgroup gets there by asking again, and can open the device
 * That no command waits for ever is spin's check of invalid end states.
 *
 * Bounds: 2 actors, of which one acquires where descriptors are passed; 2 tenants, 2 devices (1 where descriptors are passed), 2 or 3 cgroups, any number of commands and kills.
 *
 * Defines. WITH_… adds what actors and tenants do: ALLOC is berth alloc, PROC is LeaseProcess (nested where the process is in a
 * lease already), PASS is SCM_RIGHTS with the search for leftover processes. ADOPT (berth adopt of a process that has a
 * device open), EVICT and TWO_BROKERS have more states than `make model` searches. MUTANT_… is a change of the protocol
 * that an assertion must notice. LIMIT_… makes one step of the code several steps, which shows a race that the code leaves open:
 *   LIMIT_SPLIT_WALK    On cgroup version 1, Hierarchy.Populated reads a tree of cgroups one by one. A process that moves from
 *                       the outer lease's cgroup into an inner one meanwhile isn't counted, and berth alloc releases the outer
 *                       lease (S5). Only the broker moves processes so, which needs version 2.
 *   LIMIT_SPLIT_SEARCH  DeviceSearch.Search reads one process after the other. With LIMIT_PASS_ON a process that got a
 *                       descriptor passes it on to one that was read already, and closes it: the search sees neither (S3).
 *
 * Not modelled: the queue (a request here doesn't wait), receipts and Repair, exempt cgroups and the host's root, leases of
 * engines and their Bind, several PID namespaces, policy.in_use other than "refuse", policy.leftover "end", and descriptors
 * in a socket that no process has open. A Guard.Sync reads ledger and cgroups once; here a cgroup that is removed
 * meanwhile gets no entry.
 */

#ifndef NP
#define NP 2 /* tenants */
#endif
#ifndef ND
#define ND 2 /* devices: 0 and 1 */
#endif
#ifndef NC
#define NC 3 /* cgroups 1 … NC; 0 is outside of all leases */
#endif
#define NA 2 /* actors 0 and 1 */
#define DEAD (NC+1)

#define BIT(i) (1 << (i))
#define ACTOR(a) (1 + (a))        /* values of owner and namer; 0 means that the process has ended */
#define TENANT(p) (1 + NA + (p))

/* tenants */
byte cg[NP];       /* cgroup of a tenant, DEAD if it has ended */
byte has[NP];      /* bits of the devices that it has open */
byte self[NP];     /* bits of those that it has opened itself, or inherited from a process that did */
byte kid[NP];      /* 1 + the parent, for berth adopt (IsDescendant) */
byte entering[NP]; /* ACTOR(a): berth enter, which dies with its parent until it has joined the cgroup (EnterCommand) */

/* cgroups, the ledger, the guard's tables */
bool exists[NC+2];
byte parent[NC+2];
byte namer[NC+2];  /* the process that may still enter the cgroup (mayBeEntered) */
byte lease[NC+2];  /* ledger.json: 1 + device, 0 if the cgroup has no lease */
byte owner[NC+2];  /* Owner.Process */
bool entry[NC+2];  /* map berth_cgroups */
byte grant[NC+2];  /* map berth_grants: 1 + device */

byte flock;        /* ledger.lock: ACTOR(a) or 0 */
byte ilock;        /* inspection.lock */
byte stored[2];   /* processes.json: bits of tenants */
bool gone;         /* processes.json names a tenant that has ended */

/* actors */
byte mine[NA];     /* the cgroup that an actor works on */
byte whom[NA];     /* 1 + the tenant that it works for, 0 if that has ended (pidfd) */
byte ended[NA];    /* bits of cgroups: leases to inspect */
byte seen[NA];     /* bits of cgroups: inspected leases (updateInspected) */
byte found[NA*2]; /* bits of tenants: the result of a search */
bool fgone[NA];    /* one of them has ended */
bool stale[NA];    /* processes.json has changed since the actor has read it (Ask.Stale) */
bool asked[NA];    /* the actor wants an inspection, or */
bool serves[NA];     /* the search that an actor makes has begun since the other has asked */
bool covered[NA];  /* one that has begun since is complete */
bool looking[NA];  /* between Ask.Renew and the grant */
bool busy[NA];
bool probe;

byte i, j, k, m, n; /* temporary, 0 between steps */

#if ND == 2
#define CHOOSE_DEVICE(x) if :: x = 0 :: x = 1 fi
#else
#define CHOOSE_DEVICE(x) x = 0
#endif
#if NP == 2
#define CHOOSE_TENANT(x) if :: x = 0 :: x = 1 fi
#else
#define CHOOSE_TENANT(x) if :: x = 0 :: x = 1 :: x = 2 fi
#endif
#define IN(x, c) ((x) == (c) || parent[x] == (c) || parent[parent[x]] == (c))
#if NP == 2
#define POPULATED(c) (IN(cg[0], c) || IN(cg[1], c))
#else
#define POPULATED(c) (IN(cg[0], c) || IN(cg[1], c) || IN(cg[2], c))
#endif
#if NC == 3
#define HOLDS(x, d, without) ((lease[1] == 1+(d) && !((without) & 2) && IN(x, 1)) || (lease[2] == 1+(d) && !((without) & 4) && IN(x, 2)) || (lease[3] == 1+(d) && !((without) & 8) && IN(x, 3)))
#define HELD(d, without) ((lease[1] == 1+(d) && !((without) & 2)) || (lease[2] == 1+(d) && !((without) & 4)) || (lease[3] == 1+(d) && !((without) & 8)))
#define HASCHILD(c) ((exists[1] && parent[1] == c) || (exists[2] && parent[2] == c) || (exists[3] && parent[3] == c))
#else
#define HOLDS(x, d, without) ((lease[1] == 1+(d) && !((without) & 2) && IN(x, 1)) || (lease[2] == 1+(d) && !((without) & 4) && IN(x, 2)))
#define HELD(d, without) ((lease[1] == 1+(d) && !((without) & 2)) || (lease[2] == 1+(d) && !((without) & 4)))
#define HASCHILD(c) ((exists[1] && parent[1] == c) || (exists[2] && parent[2] == c))
#endif
/* The BPF program: the nearest cgroup with an entry decides (deviceguard.newInstructions). */
#define GRANTS(c, d) (grant[c] == 1+(d))
#define ALLOWED(x, d) (entry[x] -> GRANTS(x, d) : (entry[parent[x]] -> GRANTS(parent[x], d) : (entry[parent[parent[x]]] && GRANTS(parent[parent[x]], d))))
#define SLOTFREE(c) (!exists[c] && lease[c] == 0 && !entry[c] && grant[c] == 0 && mine[0] != (c) && mine[1] != (c) && !((ended[0]|ended[1]|seen[0]|seen[1]) & BIT(c)))

/* checkTables is S4. */
inline checkTables() {
	d_step {
	for (i : 1 .. NC) { assert(!(exists[i] && entry[i] && grant[i]) || lease[i] == grant[i]) }
	i = 0
	}
}

/* checkLedger is S1. */
inline checkLedger() {
	for (i : 1 .. NC) {
		for (j : 1 .. NC) { assert(i == j || lease[i] == 0 || lease[i] != lease[j]) }
	}
	i = 0; j = 0
}

inline endTenant(p) {
	d_step {
	cg[p] = DEAD; has[p] = 0; self[p] = 0; entering[p] = 0;
	kid[p] = 0;
	for (k : 0 .. NP-1) { if :: kid[k] == 1+p -> kid[k] = 0 :: else fi }
	for (k : 1 .. NC) {
		if :: owner[k] == TENANT(p) -> owner[k] = 0 :: else fi;
		if :: namer[k] == TENANT(p) -> namer[k] = 0 :: else fi
	}
	for (k : 0 .. NA-1) {
		if :: whom[k] == 1+p -> whom[k] = 0 :: else fi;
		for (m : 0 .. ND-1) {
			if :: found[k*2+m] & BIT(p) -> found[k*2+m] = found[k*2+m] & ~BIT(p); fgone[k] = 1 :: else fi
		}
	}
	for (m : 0 .. ND-1) {
		if :: stored[m] & BIT(p) -> stored[m] = stored[m] & ~BIT(p); gone = 1 :: else fi
	}
	k = 0; m = 0
	}
}

/* removeCgroup is rmdir: it fails for a cgroup with processes or with others below it. */
inline removeCgroup(c) {
	d_step {
	if
	:: exists[c] && !POPULATED(c) && !HASCHILD(c) -> exists[c] = 0; parent[c] = 0; namer[c] = 0
	:: else
	fi
	}
}

/* endActor is the end of an actor's process, by itself or by kill -9. The kernel unlocks its locks. */
inline endActor(a) {
	d_step {
	if :: flock == ACTOR(a) -> flock = 0 :: else fi;
	if :: ilock == ACTOR(a) -> ilock = 0 :: else fi;
	for (n : 1 .. NC) {
		if :: owner[n] == ACTOR(a) -> owner[n] = 0 :: else fi;
		if :: namer[n] == ACTOR(a) -> namer[n] = 0 :: else fi
	}
	mine[a] = 0; whom[a] = 0; ended[a] = 0; seen[a] = 0;
	found[a*2] = 0; found[a*2+1] = 0; fgone[a] = 0;
	stale[a] = 0; looking[a] = 0; asked[a] = 0; covered[a] = 0;
	for (n : 0 .. NP-1) {
		if :: entering[n] == ACTOR(a) -> endTenant(n) :: else fi
	}
	n = 0;
	d = 0; c = 0; op = 0; alive = 0; drop = 0; add = 0; occ = 0; adopt = 0; quiet = 0; fromLook = 0; serves[a] = 0; outer = 0;
	busy[a] = 0
	}
}

/* STEP is one step of an actor. Instead of it, the actor may be killed. A goto to a label within an atomic sequence
 * stays atomic, so that the choice of the next step is no step of its own. */
#define KILL !probe -> goto dead
#define STEP(x) atomic { if :: x :: KILL fi }

/* Operations of actors. */
#define ALLOC 1  /* berth alloc: holdLease */
#define PROC 2   /* LeaseProcess, for berth-broker and berth adopt */
#define RETRY 3  /* LeaseProcess for a process that has a lease: SyncDeviceGuard, then moveHolder */
#define REAP 4   /* Ledger.Reap */
#define RELDEAD 5 /* Ledger.ReleaseIfDead */
#define RELEASE 6 /* Ledger.Release */

/* WANTED is what deviceRules wants for a cgroup: its lease in the ledger, without those in drop. */
#ifdef MUTANT_MAP_FIRST
#define WANTED(c) (exists[c] && lease[c] && !(drop & BIT(c)) -> lease[c] : (exists[c] && add == (c) -> 1+d : 0))
#else
#define WANTED(c) (exists[c] && lease[c] && !(drop & BIT(c)) -> lease[c] : 0)
#endif

/* sync is Guard.Sync: grants are deleted, then cgroups, then grants are written, then cgroups. The actor may be killed between
 * any two keys. A tenant that opens a device between two keys does so before or after all of them: for one cgroup and
 * one device, a sync changes the program's answer once. */
inline sync() {
	for (i : 1 .. NC) {
		if :: grant[i] && grant[i] != WANTED(i) -> if :: grant[i] = 0 :: KILL fi :: else fi
	}
	for (i : 1 .. NC) {
		if :: entry[i] && !WANTED(i) -> if :: entry[i] = 0 :: KILL fi :: else fi
	}
	for (i : 1 .. NC) {
		if :: WANTED(i) && grant[i] != WANTED(i) -> if :: grant[i] = WANTED(i) :: KILL fi :: else fi
	}
	checkTables();
	for (i : 1 .. NC) {
		if :: WANTED(i) && !entry[i] -> if :: entry[i] = 1 :: KILL fi :: else fi
	}
	i = 0;
	checkTables()
}

/* writeLedger is store.writeLedger, a rename. */
inline writeLedger(a) {
	d_step {
	for (i : 1 .. NC) {
		if
		:: (drop & BIT(i)) && lease[i] ->
			for (j : 0 .. NP-1) { assert(!(self[j] & BIT(lease[i]-1))) } /* S5 */
			lease[i] = 0; owner[i] = 0
		:: else
		fi
	}
	if
	:: add ->
		for (j : 0 .. NP-1) { assert(!(has[j] & BIT(d)) || (adopt && (whom[a] == 1+j || (kid[j] && kid[j] == whom[a])))) } /* S3 */
		lease[add] = 1+d;
		if
		:: op == ALLOC -> owner[add] = ACTOR(a)
		:: else -> owner[add] = (whom[a] -> TENANT(whom[a]-1) : 0)
		fi
	:: else
	fi;
	i = 0; j = 0;
	checkLedger();
	checkTables()
	}
}

/* occupied is Node.UnleasedProcesses for the wanted device: stored tenants that still have it open without a lease. adopts
 * leaves out the process that is adopted. */
inline readOccupied(a) {
	d_step {
	occ = 0;
	for (j : 0 .. NP-1) {
		if
		:: (stored[d] & BIT(j)) && (has[j] & BIT(d)) && !HOLDS(cg[j], d, 0) && !(adopt && (whom[a] == 1+j || (kid[j] && kid[j] == whom[a]))) -> occ = 1
		:: else
		fi
	}
	j = 0
	}
}

/* hasChanged sets n if a stored tenant doesn't have its device open any more without a lease (listOccupied). */
inline hasChanged() {
	d_step {
	n = gone;
	for (i : 0 .. ND-1) {
		for (j : 0 .. NP-1) {
			if :: (stored[i] & BIT(j)) && (!(has[j] & BIT(i)) || HOLDS(cg[j], i, 0)) -> n = 1 :: else fi
		}
	}
	i = 0; j = 0
	}
}

/* chooseSlot sets n to a cgroup that doesn't exist. */
inline chooseSlot() {
	d_step {
	n = 0;
	for (i : 1 .. NC) { if :: n == 0 && SLOTFREE(i) -> n = i :: else fi }
	i = 0
	}
}

inline createCgroup(a, below, by) {
	chooseSlot();
	if
	:: n == 0 -> goto dead
	:: else -> c = n; mine[a] = n; exists[n] = 1; parent[n] = below; namer[n] = by
	fi;
	n = 0
}

/* checkHolders is L1. */
inline checkHolders() {
	d_step {
	for (j : 0 .. NP-1) {
		if
		:: cg[j] != DEAD && lease[cg[j]] && exists[cg[j]] -> assert(ALLOWED(cg[j], lease[cg[j]]-1))
		:: else
		fi
	}
	j = 0
	}
}

/* With both, and with passed descriptors, actor 0 is berth alloc and actor 1 is not. Both reap. */
#ifdef WITH_ALLOC
#ifdef WITH_PROC
#define WITH_ROLES
#endif
#ifdef WITH_PASS
#define WITH_ROLES
#endif
#endif
#ifdef WITH_ROLES
#define ALLOCATES(a) (a == 0)
#define MOVES(a) (a == 1)
#endif
#ifndef MOVES
#define ALLOCATES(a) true
#define MOVES(a) true
#endif

#define ACQUIRES (op == ALLOC || op == PROC)

proctype Actor(byte a) {
	byte d, c, op, alive, drop, add, occ, outer;
	bool adopt, quiet, fromLook;

end_idle:
	atomic {
		if
		:: probe && a == 0 -> goto probing
#ifdef WITH_ALLOC
		:: !probe && ALLOCATES(a) -> busy[a] = 1; op = ALLOC; CHOOSE_DEVICE(d); goto create
#endif
#ifdef WITH_PROC
		:: !probe && MOVES(a) ->
			busy[a] = 1; op = PROC;
			CHOOSE_DEVICE(d);
			CHOOSE_TENANT(n);
			/* The broker takes one request of a process at a time (beginAsking). */
			if
			:: cg[n] == DEAD || entering[n] -> n = 0; goto dead
#ifndef WITH_TWO_BROKERS
			:: cg[n] != DEAD && !entering[n] && whom[1-a] == 1+n -> n = 0; goto dead
			:: cg[n] != DEAD && !entering[n] && whom[1-a] != 1+n -> whom[a] = 1+n
#else
			:: cg[n] != DEAD && !entering[n] -> whom[a] = 1+n
#endif
			fi;
			n = 0;
#ifdef WITH_ADOPT
			if :: adopt = 1 :: adopt = 0 fi;
#endif
			goto find
#endif
		:: !probe && (lease[1] || lease[2] || lease[NC]) -> op = REAP; busy[a] = 1
#ifdef WITH_EVICT
		:: !probe && (lease[1] || lease[2] || lease[NC]) ->
			if :: lease[1] -> n = 1 :: lease[2] -> n = 2 :: lease[NC] -> n = NC fi;
			c = n; mine[a] = n; n = 0; busy[a] = 1;
			if :: POPULATED(c) -> goto evict :: else -> op = RELDEAD fi
#endif
		fi
	}
	goto tx;

create:	atomic {
		/* CreateCommandCgroup, before the lease, so that the guard can grant it the device */
#ifndef MUTANT_CGROUP_LATE
		createCgroup(a, 0, ACTOR(a));
#endif
		goto look
	}

find:	atomic {
		/* mover.examineProcess and findLeaseOf */
		if :: whom[a] == 0 -> goto dead :: else fi;
		d_step { for (i : 1 .. NC) { if :: lease[i] && owner[i] == TENANT(whom[a]-1) -> c = i :: else fi } i = 0 };
		n = cg[whom[a]-1];
		if
		:: c ->
			op = RETRY; mine[a] = c; d = lease[c]-1; adopt = 0; n = 0;
#ifdef MUTANT_NO_RETRY_SYNC
			goto granted
#else
			goto tx
#endif
		:: else ->
#ifndef MUTANT_INNER_BESIDE
			outer = (lease[n] -> n : (lease[parent[n]] -> parent[n] : (lease[parent[parent[n]]] -> parent[parent[n]] : 0)));
#endif
			n = 0;
			if :: parent[parent[outer]] -> goto dead :: else fi /* ErrTooDeep */
		fi
	}
#ifndef MUTANT_CGROUP_LATE
	atomic {
		if
		:: whom[a] -> createCgroup(a, outer, TENANT(whom[a]-1))
		:: else -> goto dead
		:: KILL
		fi
	}
#endif
	goto look;

look:	/* Node.acquire: look, which is Ask.Renew too */
#ifdef WITH_PASS
	STEP(stale[a] = 0; looking[a] = 1); /* versionOf */
	atomic {
		hasChanged();
		if
		:: n -> n = 0; fromLook = 1; goto inspect
		:: !n -> readOccupied(a)
		:: KILL
		fi
	}
#endif

tx:	atomic {
		/* Ledger.update; judgeReserved reads first whether the owner lives */
		if
		:: flock == 0 -> flock = ACTOR(a)
		:: KILL
		fi;
		drop = 0; add = 0; alive = 0;
		if
		:: op == RETRY -> goto syncOnly
		:: op == RELEASE -> drop = (lease[c] -> BIT(c) : 0); goto inspected
#ifndef MUTANT_NO_STALE
		:: ACQUIRES && stale[a] -> flock = 0; goto look
		:: ACQUIRES && !stale[a] && !HELD(d, 0) && !occ -> /* isTidy: dead holders were reaped a moment ago */
#else
		:: ACQUIRES && !HELD(d, 0) && !occ ->
#endif
			ended[a] = 0; add = c; goto write
#ifndef MUTANT_NO_STALE
		:: ACQUIRES && !stale[a] -> skip
#else
		:: ACQUIRES -> skip
#endif
		:: op == REAP || op == RELDEAD -> skip
		fi;
		d_step {
#ifdef MUTANT_ORDER
		for (i : 1 .. NC) { if :: lease[i] && POPULATED(i) -> alive = alive | BIT(i) :: else fi }
#else
		for (i : 1 .. NC) { if :: lease[i] && owner[i] -> alive = alive | BIT(i) :: else fi }
#endif
		i = 0 }
	}
	atomic {
		/* and then whether its cgroup is populated */
		d_step { for (i : 1 .. NC) {
			if
#ifdef MUTANT_ORDER
			:: lease[i] && !(alive & BIT(i)) && !owner[i] -> drop = drop | BIT(i)
#else
#ifdef MUTANT_NO_CGROUP
			:: lease[i] && !(alive & BIT(i)) -> drop = drop | BIT(i)
#else
			:: lease[i] && !(alive & BIT(i)) && !POPULATED(i) -> drop = drop | BIT(i)
#endif
#endif
			:: else
			fi
		}
		i = 0; alive = 0;
		if :: op == RELDEAD -> drop = drop & BIT(c) :: else fi };
inspected:	/* mayRemove, checkInspected, serveRequest */
#ifdef WITH_PASS
#ifndef MUTANT_NO_SEARCH
		ended[a] = drop & ~seen[a]; drop = drop & seen[a];
#endif
#endif
		if :: ACQUIRES && !ended[a] && !HELD(d, drop) && !occ -> add = c :: else fi;
		if
		:: KILL
		:: !drop && add -> goto write
		:: !drop && !add -> goto unlock
#ifdef MUTANT_RELEASE_LATE
		:: drop -> goto write
#else
		/* The monitor of berth run has a ledger without Options.Granted. It removes the cgroup before. */
		:: drop && quiet -> goto write
		:: drop && !quiet
#endif
		fi
	}
	/* transaction.commit: tellGranted without the leases that end */
	atomic {
		if :: true :: KILL fi;
		n = add; add = 0; sync(); add = n; n = 0
	}
write:	atomic {
		/* store.writeLedger, a rename */
#ifdef MUTANT_CGROUP_LATE
		if :: add == 0 && ACQUIRES -> chooseSlot(); if :: n == 0 -> goto dead :: else fi; c = n; mine[a] = n; add = n; n = 0 :: else fi;
#endif
#ifdef MUTANT_MAP_FIRST
		if :: add -> sync() :: else fi
	}
	atomic {
#endif
		if :: true :: KILL fi;
		writeLedger(a);
#ifdef MUTANT_RELEASE_LATE
		if :: drop -> drop = 0; goto syncOnly :: else fi;
#endif
		drop = 0;
		if :: !add -> goto unlock :: else fi
	}
syncOnly:	atomic {
		/* tellGranted with the new lease; SyncDeviceGuard */
		if :: true :: KILL fi;
#ifndef MUTANT_MAP_FIRST
		sync();
#endif
unlock:
		flock = 0; seen[a] = seen[a] & ended[a]; i = 0;
		if
		:: ended[a] -> goto inspect
		:: !ended[a] && (op == RETRY || ACQUIRES && add) -> add = 0; occ = 0; stale[a] = 0; looking[a] = 0; seen[a] = 0; goto granted
		:: !ended[a] && ACQUIRES && !add -> /* *BusyError */
			assert(!probe);
			goto remove
		:: !ended[a] && (op == RELEASE || op == RELDEAD) -> goto remove
		:: !ended[a] && op == REAP -> goto dead
		fi
	}
remove:	atomic {
		/* RemoveCommandCgroup */
		removeCgroup(c); goto dead
	}

#ifdef WITH_PASS
inspect:	atomic {
		/* Node.inspectEnded, from look without leases that end */
		asked[a] = 1; covered[a] = 0; serves[1-a] = 0
	}
	atomic {
		if
		:: ilock == 0 -> ilock = ACTOR(a)
		:: KILL
		fi;
		if :: covered[a] -> goto searched :: else fi;
		/* The time at which the search begins: it serves the calls that were made before. */
		asked[a] = 0; serves[a] = asked[1-a]
	}
	/* findLeftover: DeviceSearch.Search */
#ifdef LIMIT_SPLIT_SEARCH
	atomic {
		if :: true :: KILL fi;
		fgone[a] = 0;
		for (i : 0 .. ND-1) { found[a*2+i] = (has[0] & BIT(i) -> 1 : 0) }
		i = 0
	}
	atomic {
		if :: true :: KILL fi;
		for (i : 0 .. ND-1) { if :: has[1] & BIT(i) -> found[a*2+i] = found[a*2+i] | 2 :: else fi }
		i = 0
	}
#else
	atomic {
		if :: true :: KILL fi;
		fgone[a] = 0;
		d_step { for (i : 0 .. ND-1) {
			found[a*2+i] = 0;
			for (j : 0 .. NP-1) { if :: has[j] & BIT(i) -> found[a*2+i] = found[a*2+i] | BIT(j) :: else fi }
		}
		i = 0; j = 0 }
	}
#endif
	/* readLeases and lacksLease, storeProcesses, and the time into the lock's file */
	atomic {
		if :: true :: KILL fi;
		d_step { for (i : 0 .. ND-1) {
			for (j : 0 .. NP-1) {
				if
				:: (found[a*2+i] & BIT(j)) && HOLDS(cg[j], i, (fromLook -> 0 : ended[a])) -> found[a*2+i] = found[a*2+i] & ~BIT(j)
				:: else
				fi
			}
		}
		i = 0; j = 0;
		if
#ifndef MUTANT_SAME_LIST
		:: found[a*2] || found[a*2+1] || gone || fgone[a] || stored[0] || stored[1] ->
#else
		:: gone || fgone[a] || stored[0] != found[a*2] || stored[1] != found[a*2+1] ->
#endif
			stored[0] = found[a*2]; stored[1] = found[a*2+1]; gone = fgone[a];
			stale[0] = looking[0]; stale[1] = looking[1]
		:: else
		fi;
		found[a*2] = 0; found[a*2+1] = 0; fgone[a] = 0;
		if :: serves[a] && asked[1-a] -> covered[1-a] = 1 :: else fi;
		serves[a] = 0 }
	}
	atomic {
		if :: true :: KILL fi;
searched:
		ilock = 0; asked[a] = 0; covered[a] = 0;
		if
		:: fromLook -> fromLook = 0; readOccupied(a); goto tx
		:: else -> seen[a] = seen[a] | ended[a]; ended[a] = 0
		fi;
		if :: ACQUIRES -> goto look :: else -> goto tx fi
	}
#else
	inspect: assert(0)
#endif

granted:	atomic {
		
		if :: probe -> assert(ALLOWED(c, d)); goto stop :: else fi; /* L2, L3 */
#ifdef MUTANT_CGROUP_LATE
		exists[c] = 1; parent[c] = outer; namer[c] = (op == ALLOC -> ACTOR(a) : (whom[a] -> TENANT(whom[a]-1) : 0));
#endif
		if
		:: KILL
		:: op == ALLOC -> goto start
		/* mover.moveProcess; a client that hangs up, or a process that has ended, ends the lease */
		:: op != ALLOC && whom[a] && exists[c] ->
			cg[whom[a]-1] = c;
#ifdef WITH_ADOPT
			for (j : 0 .. NP-1) { if :: kid[j] == whom[a] && adopt -> cg[j] = c :: else fi }
			j = 0;
#endif
			goto dead
		:: op != ALLOC
		fi
	}
	/* WithdrawLease: first Populated, then Release */
	STEP(POPULATED(c) -> goto dead :: !POPULATED(c) -> op = RELEASE);
	goto tx;

start:	atomic {
		/* runInCgroup starts berth enter */
		if
		:: cg[0] == DEAD -> cg[0] = 0; entering[0] = ACTOR(a); whom[a] = 1
		:: cg[0] != DEAD && cg[1] == DEAD -> cg[1] = 0; entering[1] = ACTOR(a); whom[a] = 2
		:: KILL
		fi
	}
	/* exec.Cmd.Wait, then hasRemaining */
#ifdef LIMIT_SPLIT_WALK
	/* A walk reads one cgroup after the other, here those below first. */
	STEP(whom[a] == 0 -> n = 0; for (j : 0 .. NP-1) { if :: cg[j] != c && IN(cg[j], c) -> n = 1 :: else fi } j = 0;
		if :: n -> n = 0; goto dead :: else fi);
	STEP(true -> n = 0; for (j : 0 .. NP-1) { if :: cg[j] == c -> n = 1 :: else fi } j = 0;
		if :: n -> n = 0; goto dead :: else fi);
#else
	STEP(whom[a] == 0 -> if :: POPULATED(c) -> goto dead :: else fi);
#endif
	/* RemoveCommandCgroup, then Release */
	STEP(removeCgroup(c); op = RELEASE; if :: !exists[c] -> quiet = 1 :: quiet = 0 fi);
	goto tx;

evict:	atomic {
		/* Guard.Evict: Hierarchy.Kill; releaseBelow, if there are leases below; Release */
		for (j : 0 .. NP-1) { if :: IN(cg[j], c) -> endTenant(j) :: else fi }
		j = 0;
		for (i : 1 .. NC) { if :: i != c && IN(i, c) && lease[i] -> n = 1 :: else fi }
		i = 0;
		op = (n -> REAP : RELEASE); n = 0
	}
	goto tx;

dead:	atomic {
		endActor(a); i = 0; j = 0; n = 0; goto end_idle
	}

probing:	atomic {
		/* one further command, by actor 0: no other runs, and nothing changes meanwhile */
		checkHolders();
		for (i : 1 .. NC) { if :: namer[i] == 0 -> removeCgroup(i) :: else fi } /* SweepCommandCgroups */
		i = 0;
		if
		:: CHOOSE_DEVICE(d);
			/* L2: no lease of a live holder has the device, and nothing has it open. */
			for (i : 1 .. NC) { if :: lease[i] == 1+d && (owner[i] || POPULATED(i)) -> goto stop :: else fi }
			for (j : 0 .. NP-1) { if :: has[j] & BIT(d) -> goto stop :: else fi }
			i = 0; j = 0;
			chooseSlot();
			if :: n == 0 -> goto stop :: else fi;
			op = ALLOC; n = 0; goto create
		:: true ->
			/* L3 */
			i = 0; n = 0;
			for (i : 1 .. NC) { if :: lease[i] && exists[i] && owner[i] > NA -> n = owner[i] - NA :: else fi }
			i = 0;
			if :: n == 0 -> goto stop :: else fi;
			whom[a] = n; op = PROC; n = 0; goto find
		fi
	}

stop:	atomic { i = 0; j = 0; n = 0 }
end_stop: /* the probe has passed */
	false
}

/* tenantOpens is open(2) of a device; S2. */
inline tenantOpens(p, d) {
	assert(HOLDS(cg[p], d, 0));
	has[p] = has[p] | BIT(d); self[p] = self[p] | BIT(d)
}

proctype Tenants() {
	byte p, q, d;
end:
	do
	:: atomic { !probe && !busy[0] && !busy[1] -> probe = 1; break }
	:: atomic { !probe ->
		CHOOSE_TENANT(p);
		if
		:: cg[p] != DEAD -> endTenant(p)
		:: entering[p] && exists[mine[entering[p]-1]] -> cg[p] = mine[entering[p]-1]; entering[p] = 0
		:: cg[p] == DEAD -> cg[p] = 0
		:: cg[p] == DEAD -> /* a fork of another tenant, in its cgroup and with its files */
			CHOOSE_TENANT(q);
			if :: (cg[q] > 0 || has[q]) && cg[q] != DEAD && !entering[q] -> cg[p] = cg[q]; has[p] = has[q]; self[p] = self[q];
#ifdef WITH_ADOPT
				kid[p] = 1+q
#endif
			:: else fi
		:: cg[p] != DEAD && !entering[p] ->
			CHOOSE_DEVICE(d);
			if
			:: !(has[p] & BIT(d)) && ALLOWED(cg[p], d) -> tenantOpens(p, d)
			:: has[p] & BIT(d) -> has[p] = has[p] & ~BIT(d); self[p] = self[p] & ~BIT(d)
#ifdef WITH_PASS
			:: has[p] & BIT(d) -> /* SCM_RIGHTS */
				CHOOSE_TENANT(q);
				if
#ifdef LIMIT_PASS_ON
				:: q != p && cg[q] != DEAD && !entering[q] -> has[q] = has[q] | BIT(d)
#else
				:: q != p && cg[q] != DEAD && !entering[q] && HOLDS(cg[p], d, 0) -> has[q] = has[q] | BIT(d)
#endif
				:: else
				fi
#endif
			:: else
			fi
		fi;
		p = 0; q = 0; d = 0 }
	od
}

init {
	atomic {
		for (i : 0 .. NP-1) { cg[i] = 0 }
		i = 0;
		run Actor(0);
		run Actor(1);
		run Tenants()
	}
}
