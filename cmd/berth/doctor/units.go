package doctor

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/internal/userns"
)

// discoverUnits returns systemd's units that run berth discover at boot and each minute.
func discoverUnits() []string { return []string{"berth-discover.service", "berth-discover.timer"} }

// systemdDir exists where systemd runs (sd_booted(3)).
const systemdDir = "/run/systemd/system"

func (e *examination) checkUnits(r *report) error {
	if !exists(systemdDir) {
		r.ok("systemd doesn't run here: the first container's start runs berth discover")
		return nil
	}
	output, err := e.Run(e.ctx, append([]string{"systemctl", "show", "--property=Id,LoadState,UnitFileState,ActiveState,Result"}, discoverUnits()...)...)
	if err != nil {
		r.warn("systemctl status", "the state of berth-discover can't be read: %v", err)
		return nil
	}
	for block := range strings.SplitSeq(output, "\n\n") {
		if unit := parseProperties(block); unit["Id"] != "" {
			decideUnit(r, unit)
		}
	}
	r.okUnlessReported("%s are enabled", strings.Join(discoverUnits(), " and "))
	return nil
}

// parseProperties reads what systemctl show prints about a unit.
func parseProperties(block string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(block) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		all[key] = value
	}
	return all
}

// decideUnit reports a unit that doesn't run: the next start of a container has to run berth
// discover, and waits for it. A masked unit is the admin's choice and no problem.
func decideUnit(r *report, unit map[string]string) {
	id := unit["Id"]
	switch {
	case unit["LoadState"] == "masked":
	case unit["LoadState"] != "loaded":
		r.warn("install berth's package", "there is no %s: after a boot or a change of the driver, the next container's start waits for berth discover", id)
	case unit["UnitFileState"] == "disabled":
		r.warn("systemctl enable --now "+id, "%s isn't enabled: after a boot or a change of the driver, the next container's start waits for berth discover", id)
	case unit["ActiveState"] == "failed":
		r.warn("systemctl restart "+id+" (journalctl -u "+id+" says why)", "%s has failed (%s)", id, unit["Result"])
	case strings.HasSuffix(id, ".timer") && unit["ActiveState"] != "active":
		r.warn("systemctl start "+id, "%s is %s", id, cmp.Or(unit["ActiveState"], "not started"))
	}
}

// checkTmpfiles looks for the file by which systemd creates the state directory at boot,
// before any user can. Without berth's units berth wasn't installed by a package, and the
// file isn't expected.
func (e *examination) checkTmpfiles(r *report) error {
	packaged := slices.ContainsFunc([]string{"/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"}, func(dir string) bool {
		return exists(filepath.Join(dir, discoverUnits()[0]))
	})
	if !exists(systemdDir) || !packaged {
		return nil
	}
	found := ""
	for _, dir := range []string{"/usr/lib/tmpfiles.d", "/run/tmpfiles.d", "/etc/tmpfiles.d"} {
		if path := filepath.Join(dir, "berth.conf"); exists(path) {
			found = path
		}
	}
	decideTmpfiles(r, found, e.Config.State)
	return nil
}

func decideTmpfiles(r *report, found, state string) {
	if found != "" {
		r.ok("%s", found)
		return
	}
	r.warn(fmt.Sprintf("echo 'd %s 0755 root root -' >/etc/tmpfiles.d/berth.conf, or install berth's package again", state),
		"there is no berth.conf in /usr/lib/tmpfiles.d: any user could create %s after a boot", state)
}

// checkRootless has an ordinary user's process make a user namespace, as berth run and podman do without root.
func (e *examination) checkRootless(r *report) error {
	if e.User == inNamespace {
		return errRootOnly // such a user has no other user to try it as
	}
	refusal, err := e.TryNamespace(e.ctx)
	if err != nil {
		r.warn("install berth where users may execute it, such as /usr/bin", "whether users may make user namespaces can't be tried: %v", err)
		return nil
	}
	_, missing := os.Stat(protocol.SocketPath(e.Config.State))
	decideRootless(r, refusal, e.User != "" || missing == nil || e.Find("podman") != "")
	return nil
}

// decideRootless reports why users can't make user namespaces. It is no problem where no user needs them: with neither a
// broker nor podman.
func decideRootless(r *report, refusal userns.Refusal, needed bool) {
	switch {
	case refusal == userns.Refusal{}:
		r.ok("users may make user namespaces, as berth run and podman do without root")
	case !needed:
		r.ok("users can't make user namespaces, which berth run and podman would need without root: %s", refusal.Reason)
	default:
		r.warn(refusal.Fix, "users can't make user namespaces, which berth run and podman need without root: %s", refusal.Reason)
	}
}

// checkToolkit looks for NVIDIA's container toolkit beside berth.
func (e *examination) checkToolkit(r *report) error {
	if path := cmp.Or(e.Find("nvidia-container-runtime"), e.Find("nvidia-ctk")); path != "" {
		r.ok("NVIDIA's container toolkit is installed (%s): berth removes its additions from the specs of berth's containers", path)
	}
	return nil
}
