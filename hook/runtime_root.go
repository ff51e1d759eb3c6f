package hook

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// findRuntimeRoot returns the state directory that the runtime with this pid was given by --root, "" if it was
// given none, or has no directory of the container there.
func findRuntimeRoot(proc string, pid int, container string) string {
	const limit = 1 << 20 // the kernel allows more, but no engine uses it
	line, err := smallfile.Read(filepath.Join(proc, strconv.Itoa(pid), "cmdline"), limit)
	if err != nil {
		return ""
	}
	root := parseRoot(strings.Split(string(line), "\x00"))
	if !filepath.IsAbs(root) {
		return ""
	}
	if fi, err := os.Stat(filepath.Join(root, container)); err != nil || !fi.IsDir() {
		return ""
	}
	return root
}

// parseRoot returns the value of --root in the arguments of runc or crun, "" if there is none.
func parseRoot(args []string) string {
	for i, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		switch {
		case name != "--root" && name != "-root":
		case given:
			return value
		case i+1 < len(args):
			return args[i+1]
		}
	}
	return ""
}
