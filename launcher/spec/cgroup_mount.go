package spec

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// makeCgroupsReadOnly has a task see the host's cgroups, where a bind brings them, but not write to
// them: root inside needs no capability to move itself to another one, which has no
// device rules.
func makeCgroupsReadOnly(mounts []specs.Mount) ([]specs.Mount, error) {
	bind := func(m specs.Mount) bool { return m.Type == "bind" }
	if !slices.ContainsFunc(mounts, bind) {
		return mounts, nil
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("look for the host's cgroups: %w", err)
	}
	at := cgroupMounts(table)
	for i, m := range slices.Clone(mounts) {
		if !bind(m) {
			continue
		}
		src, err := filepath.EvalSymlinks(m.Source) //nolint:forbidigo // a path of the caller, who may bind whatever there is
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", m.Source, err)
		}
		if slices.ContainsFunc(at, func(point string) bool { return isBelow(src, point) }) {
			mounts[i].Options = withReadOnly(m.Options)
			continue
		}
		if !slices.Contains(m.Options, "rbind") {
			continue
		}
		for _, point := range at {
			to := filepath.Join(m.Destination, strings.TrimPrefix(point, src))
			taken := func(m specs.Mount) bool { return m.Destination == to }
			if isBelow(point, src) && !slices.ContainsFunc(mounts, taken) {
				mounts = append(mounts, specs.Mount{
					Destination: to, Type: "bind", Source: point,
					Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev", "noexec"},
				})
			}
		}
	}
	return mounts, nil
}

func withReadOnly(options []string) []string {
	writable := func(o string) bool { return o == "rw" || o == "ro" }
	return append(slices.DeleteFunc(slices.Clone(options), writable), "ro")
}

// isBelow says whether a path is another one, or lies below it.
func isBelow(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// cgroupMounts are the places of cgroup file systems in a mountinfo of proc(5).
func cgroupMounts(table []byte) (at []string) {
	for line := range bytes.Lines(table) {
		before, after, _ := bytes.Cut(line, []byte(" - "))
		fields, kind := bytes.Fields(before), bytes.Fields(after)
		if len(fields) < 5 || len(kind) == 0 || !bytes.HasPrefix(kind[0], []byte("cgroup")) {
			continue
		}
		if point := unescapeMountinfo(string(fields[4])); !slices.Contains(at, point) {
			at = append(at, point)
		}
	}
	return at
}

// unescapeMountinfo undoes what the kernel writes instead of bytes that would be read as others.
func unescapeMountinfo(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
