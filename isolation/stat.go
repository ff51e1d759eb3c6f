package isolation

import "golang.org/x/sys/unix"

// Stat finds the character device that path, with all its links followed, is on
// this host now. ok is false for anything else, and for what can't be reached: a
// runtime can't mount that either.
func Stat(path string) (n Number, ok bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Number{}, false
	}
	return Number{int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))}, true
}
