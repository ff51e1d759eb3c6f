package lock

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FindHolder returns the pid of a process that locked the file at path, 0 if none is
// listed. proc is where procfs is mounted; pids are those of its pid namespace, and
// processes outside of it are not listed. The process that took the lock may have ended
// and left it to one that inherited the descriptor. The answer is for messages only.
func FindHolder(path, proc string) int {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0
	}
	locks, err := os.ReadFile(proc + "/locks")
	if err != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	return findHolder(string(locks), file)
}

// findHolder reads lines like "3: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF". A line
// with "->" after its number is a process that waits.
func findHolder(locks, file string) int {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
			return pid
		}
	}
	return 0
}
