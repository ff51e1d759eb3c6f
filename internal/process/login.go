package process

import (
	"strconv"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// Sources of [FindLogin].
const (
	LoginAudit = "audit"
	LoginSudo  = "sudo"
)

// noLogin is the loginuid of a process outside of all login sessions, such as a service. Source: proc_pid_loginuid(5).
const noLogin = 1<<32 - 1

// FindLogin returns, for a process of root's, the user who has logged in and has become root since, by sudo or su, and the source: the kernel's record of
// the login session, or SUDO_UID where the kernel or the login program keeps none. uid is 0 if there is no such user. proc is where
// procfs is mounted, and sudoUID is the value of SUDO_UID, "" if it isn't set.
func FindLogin(proc, sudoUID string) (uid int, source string) {
	if text, err := smallfile.String(proc + "/self/loginuid"); err == nil {
		if id, err := strconv.ParseUint(text, 10, 32); err == nil && id != noLogin {
			return int(id), sourceUnlessRoot(int(id), LoginAudit)
		}
	}
	if id, err := strconv.ParseUint(sudoUID, 10, 32); err == nil && id != noLogin {
		return int(id), sourceUnlessRoot(int(id), LoginSudo)
	}
	return 0, ""
}

// sourceUnlessRoot returns the source of a login, "" for root's own.
func sourceUnlessRoot(uid int, source string) string {
	if uid == 0 {
		return ""
	}
	return source
}
