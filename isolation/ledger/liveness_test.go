package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/process"
)

func TestJudge(t *testing.T) {
	reserved := func(change func(*Lease)) Lease {
		l := Lease{
			ID: "0123456789ab", State: Reserved, Devices: []gpu.Device{{UUID: "GPU-0"}}, Ticks: 1000,
			Owner: Owner{
				Container: "c", BootID: "boot-1", CgroupNS: 9, Cgroup: "/berth/c", Maker: "/user",
				Process: Process{PID: 50, Start: 900, Namespace: 7},
			},
		}
		if change != nil {
			change(&l)
		}
		return l
	}
	bound := func(change func(*Lease)) Lease {
		return reserved(func(l *Lease) {
			l.State = Bound
			l.Owner.Process = Process{PID: 60, Start: 1100, Namespace: 7}
			if change != nil {
				change(l)
			}
		})
	}
	noCgroup := func(l *Lease) { l.Owner.Cgroup = "" }
	engine := func(l *Lease) { l.Owner.Cgroup, l.Owner.Engine = "", true }
	elsewhere := func(l *Lease) { l.Owner.Process.Namespace = 8 }
	container := claim{pid: 60, in: "/berth/c"}
	becomes := func() *Process { return &Process{PID: 60, Start: 1100, Namespace: 7} }

	for _, tt := range []struct {
		name  string
		lease Lease
		world func(*fakeWorld)
		live  bool
		bound *Process // the state to which a reserved lease changes
		in    string   // the cgroup of the bound lease
	}{
		{"reserved, maker lives", reserved(nil), func(w *fakeWorld) { w.procs[50] = fakeProcess{start: 900} }, true, nil, ""},
		{"reserved, maker is a zombie", reserved(nil), func(w *fakeWorld) { w.procs[50] = fakeProcess{start: 900, zombie: true} }, false, nil, ""},
		{"reserved, maker's pid was reused", reserved(nil), func(w *fakeWorld) { w.procs[50] = fakeProcess{start: 901} }, false, nil, ""},
		{"reserved, maker gone, nothing left", reserved(nil), func(*fakeWorld) {}, false, nil, ""},
		{"reserved, maker gone, cgroup inhabited", reserved(nil), func(w *fakeWorld) { w.groups["/berth/c"] = 1 }, true, nil, ""},
		{"reserved, maker lives, although a claim exists", reserved(nil), func(w *fakeWorld) {
			w.procs[50], w.procs[60] = fakeProcess{start: 900}, fakeProcess{start: 1100}
			w.claims["c"] = []claim{container}
		}, true, nil, ""},
		{"reserved, became a container", reserved(nil), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{container}
		}, true, becomes(), "/berth/c"},
		{"reserved, became one in a child of the cgroup", reserved(nil), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/berth/c/inner"}}
		}, true, becomes(), "/berth/c"},
		{"reserved, started in the tick of the lease", reserved(nil), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1000}
			w.claims["c"] = []claim{container}
		}, true, &Process{PID: 60, Start: 1000, Namespace: 7}, "/berth/c"},
		{"claim older than the lease", reserved(nil), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 999}
			w.claims["c"] = []claim{container}
		}, false, nil, ""},
		{"claim in another cgroup", reserved(nil), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/berth/cc"}}
		}, false, nil, ""},
		{"claim in another cgroup, with the start that the runtime recorded", reserved(nil), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/elsewhere", own: "/berth/c", recorded: 1100}}
		}, true, becomes(), "/berth/c"},
		{"claim of a zombie", reserved(nil), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100, zombie: true}
			w.claims["c"] = []claim{container}
		}, false, nil, ""},
		{"claim with another recorded start", reserved(nil), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/berth/c", recorded: 1099}}
		}, false, nil, ""},
		{"second claim counts", reserved(nil), func(w *fakeWorld) {
			w.procs[59], w.procs[60] = fakeProcess{start: 10}, fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 59, in: "/berth/c"}, {pid: 60, in: "/berth/c", recorded: 1100}}
		}, true, becomes(), "/berth/c"},
		{"claim of a stuck process", reserved(noCgroup), func(w *fakeWorld) {
			w.claims["c"] = []claim{{pid: 60, own: "/x/c", stuck: process.ErrStuck}}
		}, true, nil, ""},
		{"no cgroup expected, the runtime knows it", reserved(noCgroup), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/x/c", own: "/x/c"}}
		}, true, becomes(), "/x/c"},
		{"no cgroup expected, the runtime's is the root", reserved(noCgroup), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/", own: "/"}}
		}, true, becomes(), ""},
		{"no cgroup expected, none recorded", reserved(noCgroup), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/user"}} // the cgroup is also the shell's, so it proves nothing
		}, true, becomes(), ""},

		{"an engine creates the container", reserved(engine), func(w *fakeWorld) {
			w.procs[50], w.uptime = fakeProcess{start: 900}, 10*time.Second+engineLimit
		}, true, nil, ""},
		{"an engine has created none in its time", reserved(engine), func(w *fakeWorld) {
			w.procs[50], w.uptime = fakeProcess{start: 900}, 10*time.Second+engineLimit+1
		}, false, nil, ""},
		{"an engine, time since boot isn't known", reserved(engine), func(w *fakeWorld) {
			w.procs[50], w.uptime = fakeProcess{start: 900}, 0
		}, true, nil, ""},
		{"an engine, time of the lease isn't known", reserved(func(l *Lease) { engine(l); l.Ticks = 0 }), func(w *fakeWorld) {
			w.procs[50] = fakeProcess{start: 900}
		}, true, nil, ""},
		{"an engine lives on, the container exists", reserved(func(l *Lease) { l.Owner.Engine = true }), func(w *fakeWorld) {
			w.procs[50], w.procs[60] = fakeProcess{start: 900}, fakeProcess{start: 1100}
			w.claims["c"] = []claim{container}
		}, true, becomes(), "/berth/c"},
		{"an engine lives on, processes in the container's cgroup", reserved(func(l *Lease) { l.Owner.Engine = true }), func(w *fakeWorld) {
			w.procs[50], w.groups["/berth/c"] = fakeProcess{start: 900}, 1
		}, true, nil, ""},

		{"bound, init lives", bound(nil), func(w *fakeWorld) { w.procs[60] = fakeProcess{start: 1100} }, true, nil, ""},
		{"bound, init gone, cgroup inhabited", bound(nil), func(w *fakeWorld) { w.groups["/berth/c"] = 2 }, true, nil, ""},
		{"bound, init a zombie, cgroup empty", bound(nil), func(w *fakeWorld) { w.procs[60] = fakeProcess{start: 1100, zombie: true} }, false, nil, ""},
		{"bound, init's pid reused, cgroup gone", bound(nil), func(w *fakeWorld) { w.procs[60] = fakeProcess{start: 5000} }, false, nil, ""},
		{"bound, no cgroup, init lives", bound(noCgroup), func(w *fakeWorld) { w.procs[60] = fakeProcess{start: 1100} }, true, nil, ""},
		{"bound, no cgroup, init gone", bound(noCgroup), func(*fakeWorld) {}, true, nil, ""},
		{"bound, no cgroup, init gone with its pid namespace", bound(func(l *Lease) {
			noCgroup(l)
			l.Owner.Reaper = true
		}), func(*fakeWorld) {}, false, nil, ""},
		{"bound, no cgroup, init gone, the runtime's is empty", bound(noCgroup), func(w *fakeWorld) {
			w.claims["c"] = []claim{{pid: 60, recorded: 1100, own: "/x/c"}}
		}, false, nil, ""},
		{"bound, no cgroup, init gone, the runtime's is inhabited", bound(noCgroup), func(w *fakeWorld) {
			w.groups["/x/c"] = 1
			w.claims["c"] = []claim{{pid: 60, recorded: 1100, own: "/x/c"}}
		}, true, nil, ""},
		{"bound, init gone with its pid namespace, others in its own cgroup", bound(func(l *Lease) {
			l.Owner.Reaper, l.Owner.OwnCgroup = true, true
		}), func(w *fakeWorld) { w.groups["/berth/c"] = 1 }, true, nil, ""},
		{"bound, init gone with its pid namespace, others in a shared cgroup", bound(func(l *Lease) {
			l.Owner.Reaper = true
		}), func(w *fakeWorld) { w.groups["/berth/c"] = 1 }, false, nil, ""},
		{"reserved, no cgroup, init has ended, others in the runtime's", reserved(noCgroup), func(w *fakeWorld) {
			w.groups["/x/c"] = 1
			w.claims["c"] = []claim{{pid: 60, recorded: 1100, own: "/x/c"}}
		}, true, nil, ""},
		{"reserved, no cgroup, init has ended, none in the runtime's cgroup", reserved(noCgroup), func(w *fakeWorld) {
			w.claims["c"] = []claim{{pid: 60, recorded: 1100, own: "/x/c"}}
		}, false, nil, ""},
		{"reserved, no cgroup, init has ended, the runtime doesn't know it either", reserved(noCgroup), func(w *fakeWorld) {
			w.claims["c"] = []claim{{pid: 60, recorded: 1100, own: "/"}}
		}, true, nil, ""},
		{"reserved, no cgroup, the state of an earlier container", reserved(noCgroup), func(w *fakeWorld) {
			w.claims["c"] = []claim{{pid: 60, recorded: 999, own: "/"}}
		}, false, nil, ""},
		{"reserved, no cgroup, the pid file of one that has ended", reserved(noCgroup), func(w *fakeWorld) {
			w.claims["c"] = []claim{{pid: 60}}
		}, false, nil, ""},

		{"another boot", bound(func(l *Lease) { l.Owner.BootID = "boot-0" }), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.groups["/berth/c"] = 1
		}, false, nil, ""},

		{"other pid namespace, its pid here is another's", bound(elsewhere), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
		}, false, nil, ""},
		{"other pid namespace, cgroup inhabited", bound(elsewhere), func(w *fakeWorld) { w.groups["/berth/c"] = 1 }, true, nil, ""},
		{"other pid namespace, no cgroup known", bound(func(l *Lease) { elsewhere(l); noCgroup(l) }), func(*fakeWorld) {}, true, nil, ""},
		{"other pid namespace, reserved, maker's cgroup inhabited", reserved(elsewhere), func(*fakeWorld) {}, true, nil, ""},
		{"other pid namespace, reserved, both cgroups empty", reserved(elsewhere), func(w *fakeWorld) { w.groups["/user"] = 0 }, false, nil, ""},
		{"other pid namespace, reserved, maker's cgroup is the root", reserved(func(l *Lease) {
			elsewhere(l)
			l.Owner.Maker = "/"
		}), func(*fakeWorld) {}, true, nil, ""},

		{"other pid namespace, an engine creates the container", reserved(func(l *Lease) { elsewhere(l); engine(l) }), func(w *fakeWorld) {
			w.uptime = 10 * time.Second
		}, true, nil, ""},
		{"other pid namespace, an engine has created none in its time", reserved(func(l *Lease) { elsewhere(l); engine(l) }), func(*fakeWorld) {}, false, nil, ""},

		{"other cgroup namespace: an absent cgroup proves nothing", bound(func(l *Lease) { l.Owner.CgroupNS = 10 }), func(*fakeWorld) {}, true, nil, ""},
		{"nothing can be read", bound(nil), func(w *fakeWorld) { w.broken = errors.New("input/output error") }, true, nil, ""},
		{"the init is stuck", bound(nil), func(w *fakeWorld) { w.broken = process.ErrStuck }, true, nil, ""},
		{"nothing can be read, reserved", reserved(nil), func(w *fakeWorld) { w.broken = errors.New("input/output error") }, true, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFake()
			tt.world(w)
			got := judge(w, w.me, tt.lease)
			if got.live != tt.live || (!got.live && got.why == "") {
				t.Errorf("live %v, because %q", got.live, got.why)
			}
			var want *Lease
			if tt.bound != nil {
				l := tt.lease
				l.State, l.Owner.Process, l.Owner.Cgroup = Bound, *tt.bound, tt.in
				want = &l
			}
			if diff := cmp.Diff(want, got.bound); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPhase: a lease whose container runs is shown as running, also while it is recorded as
// reserved.
func TestPhase(t *testing.T) {
	lease := func(state State, process Process, cgroup string) Lease {
		return Lease{ID: "0123456789ab", State: state, Ticks: 1000, Owner: Owner{
			Container: "c", BootID: "boot-1", CgroupNS: 9, Cgroup: cgroup, Process: process,
		}}
	}
	engines := func(l Lease) Lease { l.Owner.Engine = true; return l }
	maker, init := Process{PID: 50, Start: 900, Namespace: 7}, Process{PID: 60, Start: 1100, Namespace: 7}
	for _, tt := range []struct {
		name  string
		lease Lease
		world func(*fakeWorld)
		want  Phase
	}{
		{"the container is being made", lease(Reserved, maker, "/berth/c"), func(w *fakeWorld) { w.procs[50] = fakeProcess{start: 900} }, Starting},
		{"its maker waits while it runs", lease(Reserved, maker, "/berth/c"), func(w *fakeWorld) {
			w.procs[50], w.groups["/berth/c"] = fakeProcess{start: 900}, 1
		}, Running},
		{"its init is in another cgroup than expected", lease(Reserved, maker, "/berth/c"), func(w *fakeWorld) {
			w.procs[50], w.procs[60] = fakeProcess{start: 900}, fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/elsewhere", recorded: 1100}}
		}, Running},
		{"its cgroup isn't known", lease(Reserved, maker, ""), func(w *fakeWorld) { w.procs[50] = fakeProcess{start: 900} }, Running},
		{"its engine is making it", engines(lease(Reserved, maker, "")), func(w *fakeWorld) {
			w.procs[50], w.uptime = fakeProcess{start: 900}, 11*time.Second
		}, Starting},
		{"its engine has had its time", engines(lease(Reserved, maker, "")), func(w *fakeWorld) { w.procs[50] = fakeProcess{start: 900} }, Ended},
		{"its maker has ended, it runs", lease(Reserved, maker, "/berth/c"), func(w *fakeWorld) {
			w.procs[60] = fakeProcess{start: 1100}
			w.claims["c"] = []claim{{pid: 60, in: "/berth/c"}}
		}, Running},
		{"its maker was killed before the container was made", lease(Reserved, maker, "/berth/c"), func(*fakeWorld) {}, Ended},
		{"bound", lease(Bound, init, "/berth/c"), func(w *fakeWorld) { w.procs[60] = fakeProcess{start: 1100} }, Running},
		{"bound and ended", lease(Bound, init, "/berth/c"), func(*fakeWorld) {}, Ended},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newFake()
			tt.world(w)
			if got := judge(w, w.me, tt.lease).phase(w, w.me, tt.lease); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
