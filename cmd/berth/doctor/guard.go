package doctor

import (
	"errors"
	"slices"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/isolation/deviceguard"
)

// guardUnit is systemd's unit that turns the device guard on at boot.
const guardUnit = "berth-guard.service"

// guardFacts are what is read about the device guard.
type guardFacts struct {
	reason string // why it should be on, "" if nothing says so
	on     bool
	// has are the rules of the guard that is on, and wants those that follow from configuration and ledger.
	has, wants deviceguard.Rules
}

func (e *examination) checkGuard(r *report) error {
	f := guardFacts{}
	if e.Config.Guard.Root == "deny" || len(e.Config.Guard.Exempt) > 0 {
		f.reason = "[guard] is configured"
	} else if exists(systemdDir) {
		shown, err := e.Run(e.ctx, "systemctl", "show", "--property=UnitFileState", guardUnit)
		if err == nil && parseProperties(shown)["UnitFileState"] == "enabled" { // an error is reported by units.discover
			f.reason = guardUnit + " is enabled"
		}
	}
	if e.User != "" {
		if f.reason == "" {
			return nil
		}
		return errRootOnly
	}
	node, err := berth.Open(e.Config)
	if err != nil {
		return nil //nolint:nilerr // of cgroups, reported by cgroups.version
	}
	f.wants, err = node.WantedDeviceGuard()
	if err != nil {
		return nil //nolint:nilerr // of the ledger, reported by ledger.state
	}
	f.has, err = node.DeviceGuard()
	switch {
	case errors.Is(err, deviceguard.ErrUnavailable):
		return nil // reported by cgroups.devices
	case err != nil && !errors.Is(err, deviceguard.ErrOff):
		return err
	}
	f.on = err == nil
	decideGuard(r, f)
	return nil
}

// decideGuard compares the device guard with the configuration and the ledger.
func decideGuard(r *report, f guardFacts) {
	fix := r.command("guard on")
	if !f.on {
		if f.reason != "" {
			r.warn(fix, "it is off, although %s: processes without a lease can open GPUs", f.reason)
		}
		return
	}
	if f.has.RootAllowed != f.wants.RootAllowed {
		mode := map[bool]string{true: "allow", false: "deny"}
		r.warn(fix, "guard.root is %q, and the guard that is on has %q", mode[f.wants.RootAllowed], mode[f.has.RootAllowed])
	}
	missing := map[deviceguard.Kind]int{}
	for id, want := range f.wants.Cgroups {
		has := f.has.Cgroups[id]
		lacks := func(d deviceguard.Number) bool { return !slices.Contains(has.Devices, d) }
		if has.Kind != want.Kind || slices.ContainsFunc(want.Devices, lacks) {
			missing[want.Kind]++
		}
	}
	if n := missing[deviceguard.Exempt]; n > 0 {
		r.warn(fix, "it doesn't open GPUs for %s", output.FormatCount(n, "exempt cgroup"))
	}
	if n := missing[deviceguard.Lease]; n > 0 {
		r.warn(fix, "it doesn't open all devices of %s", output.FormatCount(n, "lease"))
	}
	r.okUnlessReported("it is on, as configured")
}
