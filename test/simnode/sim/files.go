package sim

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// keepName marks a directory that has to exist without files.
const keepName = ".keep"

// writeAll writes files, given by full path, in place, with their directories.
func writeAll(files map[string]string) error {
	for path, content := range files {
		if err := makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
		if filepath.Base(path) == keepName {
			continue
		}
		if err := os.WriteFile(path, []byte(content), 0o444); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}

// linkAll makes symbolic links, given by full path.
func linkAll(links map[string]string) error {
	for path, to := range links {
		if err := makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
		if err := os.Symlink(to, path); err != nil {
			return fmt.Errorf("link: %w", err)
		}
	}
	return nil
}

// prune removes files below root that aren't among wanted, and directories in
// which nothing wanted is.
func prune(root string, wanted map[string]string) error {
	dirs := map[string]bool{root: true}
	for path := range wanted {
		for d := filepath.Dir(path); len(d) > len(root); d = filepath.Dir(d) {
			dirs[d] = true
		}
	}
	var gone []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		_, file := wanted[path]
		if !file && !dirs[path] {
			gone = append(gone, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("walk %s: %w", root, err)
	}
	for _, path := range gone {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove: %w", err)
		}
	}
	return nil
}

// sortDevices orders the lines of /proc/devices by major, after the heading.
func sortDevices(text string) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	lines[len(lines)-1] += "\n"
	slices.SortStableFunc(lines[1:], func(a, b string) int { return major(a) - major(b) })
	return strings.Join(lines, "")
}

func major(line string) int {
	word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	n, err := strconv.Atoi(word)
	if err != nil {
		return 0
	}
	return n
}

// shareCPUs divides the machine's online CPUs between the NUMA nodes, so that a process can be
// bound to the CPUs near a GPU. With fewer CPUs than nodes, nodes share CPUs.
func shareCPUs(nodes int) ([]string, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, fmt.Errorf("read online CPUs: %w", err)
	}
	all, err := parseCPUs(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, err
	}
	var lists []string
	for i := range nodes {
		from, to := i*len(all)/nodes, (i+1)*len(all)/nodes
		if from == to {
			from, to = 0, len(all)
		}
		lists = append(lists, formatCPUs(all[from:to]))
	}
	return lists, nil
}

// parseCPUs reads the kernel's list format: "0-3,8".
func parseCPUs(list string) (cpus []int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA != nil || errB != nil {
			return nil, fmt.Errorf("parse list of CPUs %q", list)
		}
		for c := a; c <= b; c++ {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

func formatCPUs(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		part := strconv.Itoa(cpus[i])
		if j > i {
			part += "-" + strconv.Itoa(cpus[j])
		}
		parts, i = append(parts, part), j+1
	}
	return strings.Join(parts, ",")
}

// maskCPUs writes a list as the kernel's mask: "00000001,00000003".
func maskCPUs(list string) string {
	cpus, err := parseCPUs(list)
	if err != nil || len(cpus) == 0 {
		return "0"
	}
	words := make([]uint32, slices.Max(cpus)/32+1)
	for _, c := range cpus {
		words[c/32] |= 1 << (c % 32)
	}
	slices.Reverse(words)
	var parts []string
	for _, w := range words {
		parts = append(parts, fmt.Sprintf("%08x", w))
	}
	return strings.Join(parts, ",")
}
