package doctor

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// discoverUnits are systemd's units that look at the node at boot and each minute.
func discoverUnits() []string { return []string{"berth-discover.service", "berth-discover.timer"} }

// units: without them the next start of a container does their work, and waits for it.
func (e *exam) units(r *result) error {
	if !there("/run/systemd/system") {
		r.ok("systemd doesn't run here: the first container's start does berth discover")
		return nil
	}
	said, err := e.Run(e.ctx, append([]string{"systemctl", "show", "--property=Id,LoadState,UnitFileState,ActiveState,Result"}, discoverUnits()...)...)
	if err != nil {
		r.warn("systemctl status", "systemd doesn't say how berth-discover stands: %v", err)
		return nil
	}
	before := len(r.findings)
	for block := range strings.SplitSeq(said, "\n\n") {
		if unit := properties(block); unit["Id"] != "" {
			judgeUnit(r, unit)
		}
	}
	r.fine(before, "%s are enabled", strings.Join(discoverUnits(), " and "))
	return nil
}

func properties(block string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(block) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		all[key] = value
	}
	return all
}

func judgeUnit(r *result, unit map[string]string) {
	id := unit["Id"]
	switch {
	case unit["LoadState"] == "masked": // which an admin wants
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

// tmpfiles: systemd makes the directories at boot, before any user could.
func (e *exam) tmpfiles(r *result) error {
	if !there("/run/systemd/system") || !slices.ContainsFunc([]string{"/usr/lib/systemd/system/", "/lib/systemd/system/", "/etc/systemd/system/"}, func(dir string) bool {
		return there(dir + discoverUnits()[0])
	}) {
		return nil
	}
	for _, dir := range []string{"/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"} {
		if path := filepath.Join(dir, "berth.conf"); there(path) {
			r.ok("%s", path)
			return nil
		}
	}
	r.warn(fmt.Sprintf("echo 'd %s 0755 root root -' >/etc/tmpfiles.d/berth.conf, or install berth's package again", e.Config.State),
		"there is no berth.conf in /usr/lib/tmpfiles.d: who comes first after a boot makes %s", e.Config.State)
	return nil
}

// rootless: podman without root makes a user namespace.
func (e *exam) rootless(r *result) error {
	if e.Find("podman") == "" {
		return nil
	}
	before := len(r.findings)
	for _, s := range []struct{ key, bad, good string }{
		{"user.max_user_namespaces", "0", "15000"},
		{"kernel.unprivileged_userns_clone", "0", "1"},
		{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"},
	} {
		path := e.host.ProcPath("sys", strings.ReplaceAll(s.key, ".", "/"))
		if value, err := smallfile.String(path); err == nil && value == s.bad {
			r.warn("sysctl -w "+s.key+"="+s.good, "podman can't run without root: %s is %s", s.key, s.bad)
		}
	}
	r.fine(before, "users may make user namespaces, as podman does without root")
	return nil
}

// toolkit looks whether NVIDIA's is there as well.
func (e *exam) toolkit(r *result) error {
	for _, name := range []string{"nvidia-container-runtime", "nvidia-ctk"} {
		if path := e.Find(name); path != "" {
			r.ok("NVIDIA's container toolkit is installed (%s): berth takes what it adds out of berth's containers", path)
			return nil
		}
	}
	return nil
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
