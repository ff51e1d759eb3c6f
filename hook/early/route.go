//go:build amd64 || arm64

package early

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/atomicfile"
)

// State is the state directory that a configuration has to name.
const State = "/run/berth"

// places are the files that Begin reads.
//
//nolint:gochecknoglobals // tests have others
var places = struct{ config, route, ledger string }{
	"/etc/berth/config.toml", State + "/runtime.route", State + "/ledger.json",
}

// Look is called before the configuration is read, and its result's Note afterwards. It
// is nil unless Begin has found nothing that speaks of this configuration.
func Look() *Configuration {
	if !work.wanted {
		return nil
	}
	var c Configuration
	if err := unix.Stat(places.config, &c.st); err != nil {
		return nil
	}
	return &c
}

// Configuration is the configuration's file as it was.
type Configuration struct{ st unix.Stat_t }

// settled is how long a file has to be as it is: two changes within one tick of the
// kernel's clock look the same.
//
//nolint:gochecknoglobals // tests have less time
var settled = 2 * time.Second

// Note writes down which runtime is configured ("" if none is) for the Begin of later
// calls, in a file that root alone can write. It holds for the very file that was read:
// device, inode, size, times. The error says why there is none; then all works, and
// takes longer.
func (c *Configuration) Note(runtime string) error {
	changed := time.Unix(c.st.Ctim.Unix())
	switch {
	case time.Since(changed) < settled:
		return fmt.Errorf("note the runtime: %s is too new", places.config)
	case strings.ContainsAny(runtime, "\n\x00") || len(runtime) > 256,
		strings.Contains(runtime, "/") && (!filepath.IsAbs(runtime) || filepath.Clean(runtime) != runtime):
		return fmt.Errorf("note the runtime: %q isn't plain", runtime)
	}
	var now unix.Stat_t
	if err := unix.Stat(places.config, &now); err != nil {
		return fmt.Errorf("note the runtime: %w", err)
	}
	if line(now) != line(c.st) {
		return errors.New("note the runtime: the configuration changes")
	}
	return atomicfile.Write(places.route, []byte(line(now)+runtime+"\n"), 0o644, atomicfile.Options{})
}

// line is how the file begins.
func line(st unix.Stat_t) string {
	var b buffer
	expect(&b, &st)
	return unix.ByteSliceToString(b.text[:])
}
