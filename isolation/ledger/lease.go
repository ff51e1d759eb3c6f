package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/berth-gpu/berth/gpu"
)

// Lease records which devices an owner holds, since when, and the proof that the owner lives. The
// zero Lease holds nothing.
type Lease struct {
	// ID is twelve random hex digits, new each time a container is created: a late release of an
	// earlier container with the same name can't end the lease of a later one.
	ID      string       `json:"id"`
	State   State        `json:"state"`
	Devices []gpu.Device `json:"devices"`
	// Request in the canonical words of request.Request.String.
	Request string    `json:"request"`
	Owner   Owner     `json:"owner"`
	Since   time.Time `json:"since"`
	// Ticks is Since in the unit of Process.Start, which doesn't depend on the clock. A process that
	// started earlier can't be the one that this lease was made for.
	Ticks uint64 `json:"ticks"`
}

// State of a lease. A released lease isn't in the ledger.
type State string

const (
	// Reserved: the devices are taken, and the ledger doesn't know of a container yet. Owner.Process
	// is the process that creates it.
	Reserved State = "reserved"
	// Bound: the container exists. Owner.Process is its init, Owner.Cgroup its cgroup.
	Bound State = "bound"
)

// Owner is the holder of a lease.
type Owner struct {
	// EntryPoint of the request: "docker", "podman", "containerd", "runtime", "run", "alloc", "api".
	EntryPoint string `json:"door"`
	// Container is the id that the engine or launcher gave, Name what people call it.
	Container string `json:"container,omitempty"`
	Name      string `json:"name,omitempty"`
	Bundle    string `json:"bundle,omitempty"`
	UID       int    `json:"uid"`
	// User is the name of UID, "" if the process that took the lease hasn't looked it up. It is for
	// display only.
	User string `json:"user,omitempty"`
	// Login is the uid of the person for whom root took the lease, 0 if that isn't known, and LoginUser its name. LoginFrom is
	// the source: "audit" is the kernel's record of the login session; "sudo" is the environment variable SUDO_UID,
	// which root can set to anything.
	Login     int    `json:"login_uid,omitempty"`
	LoginUser string `json:"login_user,omitempty"`
	LoginFrom string `json:"login_from,omitempty"`
	// Command is for display only.
	Command string  `json:"command,omitempty"`
	Process Process `json:"process"`
	// Engine is set if Process of a reserved lease is an engine, which can be a service that lives on when
	// the creation of the container fails. The lease then ends a minute after it was taken unless the
	// container exists, and is never ended by killing the engine. The container must not start if Bind
	// fails.
	Engine bool `json:"engine,omitempty"`
	// Reaper: Process is pid 1 of a pid namespace of the container's own, so the
	// kernel ends all of the container with it.
	Reaper bool   `json:"reaper,omitempty"`
	BootID string `json:"boot_id"`
	// Cgroup is the path below the hierarchy's mount point as the host sees it,
	// e.g. "/berth/4f0c…" or "/system.slice/docker-….scope"; on cgroup v1 in the
	// devices hierarchy. "" if not known (yet).
	Cgroup string `json:"cgroup,omitempty"`
	// OwnCgroup is set if the cgroup was empty when the lease was taken: all processes in it belong
	// to the container.
	OwnCgroup bool `json:"own_cgroup,omitempty"`
	// CgroupNS is the inode of the cgroup namespace in which the cgroups of this owner are meant: in
	// another cgroup namespace a missing cgroup proves nothing.
	CgroupNS uint64 `json:"cgroupns,omitempty"`
	// Maker is the cgroup of the process that took the lease: processes in other pid namespaces use
	// it as the proof that the holder of a reserved lease lives.
	Maker string `json:"maker_cgroup,omitempty"`
	// Step is the cgroup of the Slurm step that the holder was started in, "" if there was none. When no process is in it any more, the
	// holder's processes are killed.
	Step string `json:"slurm_step_cgroup,omitempty"`
	// PIDFile, RuntimeRoot and Runtime are where the container's init can be
	// found once the runtime has made it: the --pid-file, the runtime's state
	// directory (--root) and the real runtime's name ("runc", "crun").
	PIDFile     string `json:"pid_file,omitempty"`
	RuntimeRoot string `json:"runtime_root,omitempty"`
	Runtime     string `json:"runtime,omitempty"`
}

// Process identifies one process uniquely: a pid alone can be reused.
type Process struct {
	PID int `json:"pid"`
	// Start is field 22 of /proc/PID/stat: clock ticks since boot. exec keeps it.
	Start uint64 `json:"start"`
	// Namespace is the inode of the pid namespace in which PID is meant.
	Namespace uint64 `json:"pidns"`
}

// Limits on the texts of an owner. Texts shown on terminals must not contain control sequences.
const (
	maxShown = 120  // runes of Name, User, LoginUser and Command
	maxText  = 4096 // bytes of every other text: the length of a path
)

// sanitize returns the owner with Name, User, LoginUser and Command made fit to be shown, or an
// error if any other text is too long or holds control characters.
func (o Owner) sanitize() (Owner, error) {
	o.Name, o.User, o.LoginUser, o.Command = sanitizeText(o.Name), sanitizeText(o.User), sanitizeText(o.LoginUser), sanitizeText(o.Command)
	texts := []string{o.EntryPoint, o.LoginFrom, o.Container, o.Bundle, o.BootID, o.Cgroup, o.Maker, o.Step, o.PIDFile, o.RuntimeRoot, o.Runtime}
	for _, t := range texts {
		if len(t) > maxText || strings.ContainsFunc(t, unicode.IsControl) {
			return o, fmt.Errorf("check owner: invalid text %.40q", t)
		}
	}
	if strings.Contains(o.Container, "/") || o.Container == "." || o.Container == ".." {
		return o, fmt.Errorf("check owner: invalid container id %.40q", o.Container)
	}
	return o, nil
}

func sanitizeText(text string) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text))
	if len(runes) > maxShown {
		runes = append(runes[:maxShown-1], '…')
	}
	return string(runes)
}

// displayName returns entry point, name and short id of a holder, and the person if root took the lease for one, for one-line
// messages.
func (o Owner) displayName() string {
	if o.LoginUser != "" {
		person := o.LoginUser
		o.LoginUser = ""
		return o.displayName() + " of " + person
	}
	id := o.Container[:min(len(o.Container), 12)]
	switch {
	case o.Name != "" && o.Name != o.Container && id != "":
		return o.EntryPoint + " " + o.Name + " (" + id + ")"
	case id != "":
		return o.EntryPoint + " " + id
	case o.Name != "":
		return o.EntryPoint + " " + o.Name
	case o.Process.PID == 0: // only the user of this holder is shown
		return cmp.Or(o.User, "others")
	}
	return fmt.Sprintf("%s, process %d", o.EntryPoint, o.Process.PID)
}

// conflicts reports whether the lease holds something that can't be leased beside d.
func (l Lease) conflicts(d gpu.Device) bool { return slices.ContainsFunc(l.Devices, d.Conflicts) }
