package wrapper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// resourcesLimit is the most bytes of an update that are read. Engines write a few
// kilobytes.
const resourcesLimit = 1 << 20

// updateContainer execs the real runtime's update, without the device rules in the
// resources: crun would replace the container's rules by them, and so open accelerators to
// a container whose spec had none. The runtime reads the rest from a descriptor, so that
// no other process can change it in between. It returns only on error.
func (o Options) updateContainer(c call, rt Runtime) error {
	text, err := readResources(c.resources)
	if err == nil {
		text, err = withoutDevices(text)
	}
	if err != nil {
		return fmt.Errorf("update container %s: resources: %w", c.id, err)
	}
	fd, err := memoryFile("berth-resources", text)
	if err != nil {
		return fmt.Errorf("update container %s: %w", c.id, err)
	}
	o.Args = c.withResources(o.Args, fmt.Sprintf("/proc/self/fd/%d", fd))
	return errors.Join(o.execRealRuntime(rt), unix.Close(fd))
}

func readResources(path string) (text []byte, err error) {
	in := os.Stdin
	if path != "-" {
		if in, err = os.Open(path); err != nil {
			return nil, err
		}
		defer in.Close() // only read from
	}
	text, err = io.ReadAll(io.LimitReader(in, resourcesLimit+1))
	if err == nil && len(text) > resourcesLimit {
		err = fmt.Errorf("more than %d bytes", resourcesLimit)
	}
	return text, err
}

// withoutDevices removes the device rules from resources, in whichever case the key is
// written: runc ignores case. In crun, a key ends at its first NUL. Of two equal other keys the last one stays, which counts
// for both runtimes.
func withoutDevices(text []byte) ([]byte, error) {
	var all map[string]json.RawMessage
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&all); err != nil {
		return nil, err
	}
	for key := range all {
		if name, _, _ := strings.Cut(key, "\x00"); strings.EqualFold(name, "devices") {
			delete(all, key)
		}
	}
	return json.Marshal(all)
}

// memoryFile returns an inheritable descriptor from which the real runtime reads text.
func memoryFile(name string, text []byte) (fd int, err error) {
	if fd, err = unix.MemfdCreate(name, 0); err != nil {
		return -1, fmt.Errorf("make memory file: %w", err)
	}
	if _, err = unix.Write(fd, text); err == nil {
		_, err = unix.Seek(fd, 0, io.SeekStart)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("write memory file: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// withResources returns the command line with path as the file of resources.
func (c call) withResources(args []string, path string) []string {
	all := slices.Clone(args)
	for _, i := range c.resourcesAt {
		// The value is all of the word, or what follows the flag in it. Of several
		// flags the last counts.
		if flag, ok := strings.CutSuffix(all[i], c.resources); ok {
			all[i] = flag + path
		}
	}
	return all
}
