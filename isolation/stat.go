package isolation

import "golang.org/x/sys/unix"

// Stat returns the numbers of the character device at path; links are followed. ok is false if path
// is anything else or can't be reached: then no runtime can mount it either.
func Stat(path string) (n Number, ok bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Number{}, false
	}
	return Number{int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))}, true
}
