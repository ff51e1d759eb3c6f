// Package doctor looks whether everything is in place that berth stands on, and says of
// each thing that isn't how it is mended.
//
// It looks at the real thing each time (the node, the mount, the file, the process) and
// writes nothing: what it can't see without changing something, it doesn't look at. So a
// GPU's node is never opened, for without persistence mode that wakes the GPU up, which
// takes seconds. The engines are package hook/setup's.
//
// What only root can see is no failure of a machine on which somebody else asks: it is
// left out, and one finding says what.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/setup"
)

// Finding is what was found about one thing.
type Finding struct {
	// ID is the check's, and stays the same from version to version: "driver.files". A
	// check has several findings where several things are wrong.
	ID    string      `json:"id"`
	State setup.State `json:"state"`
	// About is the part of berth or of the machine, for people: "driver".
	About string `json:"about"`
	Text  string `json:"text"`
	// Mend is a command, or what to do. "" where nothing is to be done.
	Mend string `json:"mend,omitempty"`
}

// Host is how this process sees the machine.
type Host struct {
	Config berth.Config
	// ConfigPath is where the configuration was looked for.
	ConfigPath string
	// Berth is the berth command that runs.
	Berth string
	// User says who this process is where it isn't root of the machine: "user 1000".
	User string
	// Find looks for a program where PATH says; "" if it isn't there.
	Find func(name string) string
	// Run calls a program and returns what it prints.
	Run func(ctx context.Context, words ...string) (string, error)
}

// Examine makes all checks, one after another.
func Examine(ctx context.Context, h Host) []Finding {
	e := &exam{Host: h, ctx: ctx, host: h.Config.GPUHost()}
	e.make(e.checks())
	if len(e.unseen) > 0 {
		r := &result{exam: e, id: "access"}
		r.warn("sudo "+e.berth("doctor"), "%s can't look at: %s", e.User, strings.Join(e.unseen, ", "))
	}
	return e.findings
}

type exam struct {
	Host
	ctx      context.Context //nolint:containedctx // of the one examination
	host     gpu.Host
	findings []Finding
	unseen   []string // what only root could look at
	program  string   // the runtime that was found
}

type check struct {
	id   string
	look func(*result) error
}

func (e *exam) checks() []check {
	return []check{
		{"configuration", e.configuration},
		{"driver.module", e.module},
		{"driver.cards", e.cardsTaken},
		{"driver.files", e.driverFiles},
		{"driver.uvm", e.uvm},
		{"driver.fabric", e.fabric},
		{"nodes.device", e.nodesThere},
		{"nodes.mode", e.nodesOpen},
		{"links", e.links},
		{"snapshot.fresh", e.fresh},
		{"snapshot.files", e.copies},
		{"snapshot.lost", e.lost},
		{"runtime.program", e.runtimeProgram},
		{"runtime.version", e.runtimeVersion},
		{"runtime.launcher", e.launcherRuntime},
		{"runtime.engine", e.runEngine},
		{"programs.there", e.programsThere},
		{"programs.init", e.initProgram},
		{"programs.safe", e.programsSafe},
		{"kernel.calls", e.calls},
		{"kernel.overlay", e.overlay},
		{"cgroups.version", e.cgroupVersion},
		{"cgroups.controllers", e.controllers},
		{"cgroups.devices", e.deviceRules},
		{"permissions", e.permissions},
		{"data.mount", e.dataMount},
		{"data.space", e.dataSpace},
		{"ledger.state", e.ledger},
		{"ledger.lock", e.ledgerLock},
		{"tasks.records", e.tasks},
		{"images.names", e.images},
		{"cdi.own", e.ownSpecs},
		{"cdi.others", e.otherSpecs},
		{"nccl.acs", e.acs},
		{"nccl.peermem", e.peermem},
		{"nccl.shm", e.shm},
		{"nccl.memlock", e.memlock},
		{"nccl.policy", e.memoryPolicy},
		{"nccl.files", e.ncclFiles},
		{"nccl.ports", e.rdmaPorts},
		{"nccl.gids", e.gids},
		{"nccl.mtu", e.mtu},
		{"nccl.namespaces", e.rdmaNamespaces},
		{"network.kernel", e.networkKernel},
		{"network.firewall", e.networkFirewall},
		{"network.addresses", e.networkAddresses},
		{"units.discover", e.units},
		{"units.tmpfiles", e.tmpfiles},
		{"rootless", e.rootless},
		{"toolkit", e.toolkit},
	}
}

func (e *exam) make(checks []check) {
	for _, c := range checks {
		r := &result{exam: e, id: c.id}
		if err := c.look(r); err != nil && !e.hidden(r, err) {
			r.fail("look there: berth expected something else", "%v", err)
		}
	}
}

// hidden says that an error only means that this user may not look.
func (e *exam) hidden(r *result, err error) bool {
	if e.User == "" || !errors.Is(err, fs.ErrPermission) {
		return false
	}
	r.hide()
	return true
}

// berth is a call of berth with the configuration that was looked at.
func (e *exam) berth(words string) string {
	if e.ConfigPath != berth.ConfigPath {
		return "berth --config " + e.ConfigPath + " " + words
	}
	return "berth " + words
}

// result is where one check puts what it finds.
type result struct {
	*exam
	id string
}

func (r *result) ok(format string, values ...any) { r.add(setup.OK, "", format, values...) }

func (r *result) warn(mend, format string, values ...any) {
	r.add(setup.Warning, mend, format, values...)
}

func (r *result) fail(mend, format string, values ...any) {
	r.add(setup.Failure, mend, format, values...)
}

func (r *result) add(state setup.State, mend, format string, values ...any) {
	about, _, _ := strings.Cut(r.id, ".")
	r.findings = append(r.findings, Finding{ID: r.id, State: state, About: about, Text: fmt.Sprintf(format, values...), Mend: mend})
}

// hide remembers that only root could make this check.
func (r *result) hide() { r.unseen = append(r.unseen, r.id) }

// fine says ok unless something was found since.
func (r *result) fine(before int, format string, values ...any) {
	if len(r.findings) == before {
		r.ok(format, values...)
	}
}

// listed names the first of many.
func listed(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
