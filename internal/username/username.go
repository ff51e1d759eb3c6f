// Package username finds the names of users.
package username

import (
	"context"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"time"
)

// Find returns the name of a user, or the number of one without a name. If /etc/passwd lacks the user, Find runs
// getent: berth's programs are linked statically, and only the C library finds users of directory services.
func Find(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "getent", "passwd", id).Output()
	if name, _, found := strings.Cut(string(out), ":"); err == nil && found && name != "" {
		return name
	}
	return id
}
