// Package doctor is the verb doctor. It checks the parts of the machine that berth depends
// on, and names a fix for each problem.
//
// Each check reads the present state of the machine (a device node, a mount, a file, a
// process), and then decides what that means. Functions named read… and methods of examination
// read; functions named decide… are pure, so they are tested without a machine. No check
// writes anything, takes a lock, or opens a GPU's device node: without persistence mode,
// opening the node powers the GPU up and takes seconds.
//
// A check that only root can make is not a failure for other users: it is left out, and
// one finding lists such checks.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/internal/userns"
)

// State is how bad a finding is.
type State string

// The states.
const (
	OK      State = "ok"
	Warning State = "warning" // a part doesn't work, or works in an unexpected way
	Failure State = "failure" // containers get no GPUs, or other users than root can change files that root runs
)

// Finding is the result of a check about one thing. Its JSON form is documented in
// docs/doctor.md.
type Finding struct {
	// ID is the check's, such as "driver.files". It stays the same from version to version.
	// A check that finds several defects has several findings.
	ID    string `json:"id"`
	State State  `json:"state"`
	// About is the part of berth or of the machine, for people: "driver".
	About string `json:"about"`
	Text  string `json:"text"`
	// Fix is a command or an instruction, "" if the state is [OK].
	Fix string `json:"fix,omitempty"`
}

// Host is how this process sees the machine.
type Host struct {
	Config berth.Config
	// ConfigPath is the path of the configuration, which may be missing.
	ConfigPath string
	// Berth is the path of the berth command that runs.
	Berth string
	// User names this process's user, as in "user 1000"; "" if it is root of the machine.
	User string
	// Find looks for a program in PATH; "" if there is none.
	Find func(name string) string
	// Run calls a program and returns what it prints.
	Run func(ctx context.Context, words ...string) (string, error)
	// TryNamespace has an ordinary user's process make a user namespace, and returns why that is refused, the zero value if it isn't.
	TryNamespace func(ctx context.Context) (userns.Refusal, error)
	// Engines reads how an engine is set up.
	Engines func(ctx context.Context, engine string) Engine
}

// Examine makes all checks, one after another.
func Examine(ctx context.Context, h Host) []Finding {
	e := &examination{Host: h, ctx: ctx, host: h.Config.GPUHost()}
	for _, c := range e.checks() {
		e.run(c)
	}
	if len(e.unseen) > 0 {
		r := e.newReport("access")
		r.warn("sudo "+r.command("doctor"), "%s can't check: %s", e.User, strings.Join(e.unseen, ", "))
		e.findings = append(e.findings, r.findings...)
	}
	e.examineEngines()
	return e.findings
}

// examination is one examination of a machine.
type examination struct {
	Host
	ctx      context.Context //nolint:containedctx // of the one examination
	host     gpu.Host
	findings []Finding
	unseen   []string // ids of checks that only root can make
	runtime  string   // the OCI runtime that was found
}

// check is one check. Its error means that the machine could not be read.
type check struct {
	id  string
	run func(*report) error
}

func (e *examination) checks() []check {
	return []check{
		{"configuration", e.checkConfiguration},
		{"driver.module", decideOn(e.readDriver, decideModule)},
		{"driver.cards", decideOn(e.readDriver, decideCards)},
		{"driver.files", e.checkDriverFiles},
		{"driver.uvm", e.checkUVM},
		{"driver.fabric", e.checkFabricManager},
		{"nodes.device", decideOn(e.readNodes, decideNodes)},
		{"nodes.mode", e.checkNodeModes},
		{"links", decideOn(e.readNodes, decideLinks)},
		{"snapshot.fresh", e.checkSnapshot},
		{"snapshot.files", e.checkDriverCopies},
		{"snapshot.owner", e.checkSharedMount},
		{"snapshot.lost", e.checkLostGPUs},
		{"runtime.program", e.checkRuntime},
		{"runtime.version", e.checkRuntimeVersion},
		{"runtime.launcher", e.checkLauncherRuntime},
		{"runtime.engine", e.checkTaskEngine},
		{"programs.there", e.checkPrograms},
		{"programs.init", e.checkInitProgram},
		{"programs.safe", e.checkProgramOwners},
		{"kernel.calls", e.checkSystemCalls},
		{"kernel.overlay", e.checkOverlay},
		{"cgroups.version", e.checkCgroups},
		{"cgroups.controllers", e.checkControllers},
		{"cgroups.devices", e.checkDeviceRules},
		{"guard", e.checkGuard},
		{"containers.open", e.checkRunningContainers},
		{"permissions", e.checkDirectories},
		{"data.mount", e.checkDataMounts},
		{"data.space", e.checkDataSpace},
		{"ledger.state", e.checkLedger},
		{"ledger.lock", e.checkLocks},
		{"tasks.records", e.checkTaskRecords},
		{"images.names", e.checkImageNames},
		{"cdi.own", e.checkOwnSpecs},
		{"cdi.others", e.checkOtherSpecs},
		{"nccl.acs", e.checkACS},
		{"nccl.peermem", e.checkPeerMemory},
		{"nccl.shm", e.checkSharedMemory},
		{"nccl.memlock", e.checkLockedMemory},
		{"nccl.policy", e.checkMemoryPolicy},
		{"nccl.files", e.checkNCCLFiles},
		{"nccl.ports", e.checkRDMAPorts},
		{"nccl.gids", decideOn(e.readRoCE, decideGIDs)},
		{"nccl.mtu", decideOn(e.readRoCE, decideMTU)},
		{"nccl.namespaces", e.checkRDMANamespaces},
		{"network.kernel", e.checkGangKernel},
		{"network.firewall", e.checkFirewall},
		{"network.addresses", e.checkGangAddresses},
		{"units.discover", e.checkUnits},
		{"units.tmpfiles", e.checkTmpfiles},
		{"rootless", e.checkRootless},
		{"toolkit", e.checkToolkit},
	}
}

// decideOn returns a check that passes what read returns to decide.
func decideOn[T any](read func() (T, error), decide func(*report, T)) func(*report) error {
	return func(r *report) error {
		facts, err := read()
		if err == nil {
			decide(r, facts)
		}
		return err
	}
}

// errRootOnly is the error of a check that only root can make.
var errRootOnly = errors.New("only root can check it")

// run makes one check and keeps its findings. A check that only root can make is left out
// for other users.
func (e *examination) run(c check) {
	r := e.newReport(c.id)
	err := c.run(r)
	switch {
	case err == nil:
	case e.User != "" && (errors.Is(err, errRootOnly) || errors.Is(err, fs.ErrPermission)):
		e.unseen = append(e.unseen, c.id)
	default:
		r.fail("find out why the check can't read this", "%v", err)
	}
	e.findings = append(e.findings, r.findings...)
}

// report collects the findings of one check.
type report struct {
	id         string
	configPath string
	user       string
	findings   []Finding
	// earlier are the findings of the checks before.
	earlier []Finding
}

func (e *examination) newReport(id string) *report {
	return &report{id: id, configPath: e.ConfigPath, user: e.User, earlier: e.findings}
}

// command returns a command line of berth that names the configuration that is checked.
func (r *report) command(words string) string {
	if r.configPath != berth.ConfigPath {
		return "berth --config " + r.configPath + " " + words
	}
	return "berth " + words
}

func (r *report) ok(format string, values ...any) { r.add(OK, "", format, values...) }

func (r *report) warn(fix, format string, values ...any) { r.add(Warning, fix, format, values...) }

func (r *report) fail(fix, format string, values ...any) { r.add(Failure, fix, format, values...) }

func (r *report) add(state State, fix, format string, values ...any) {
	about, _, _ := strings.Cut(r.id, ".")
	r.findings = append(r.findings, Finding{ID: r.id, State: state, About: about, Text: fmt.Sprintf(format, values...), Fix: fix})
}

// okUnlessReported adds an ok finding unless the check has reported a problem.
func (r *report) okUnlessReported(format string, values ...any) {
	if len(r.findings) == 0 {
		r.ok(format, values...)
	}
}

// hasFix reports whether this or an earlier check has named the same fix.
func (r *report) hasFix(fix string) bool {
	same := func(f Finding) bool { return f.Fix == fix }
	return slices.ContainsFunc(r.earlier, same) || slices.ContainsFunc(r.findings, same)
}

// listFirst joins the names, or the first of many and the number of the others.
func listFirst(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// examineEngines diagnoses each engine that is installed.
func (e *examination) examineEngines() {
	installed := false
	for _, name := range setup.Engines() {
		r := e.newReport("engines." + name)
		decideEngine(r, e.Engines(e.ctx, name))
		installed = installed || len(r.findings) > 0
		for _, f := range r.findings {
			f.About = name
			e.findings = append(e.findings, f)
		}
	}
	if !installed {
		r := e.newReport("engines")
		r.ok("neither docker nor containerd nor podman is installed; berth run and berth alloc need none")
		e.findings = append(e.findings, r.findings...)
	}
}
