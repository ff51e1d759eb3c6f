package sysfs

import (
	"fmt"
	"strconv"
	"strings"
)

// maxCPU is beyond what Linux can be built for.
const maxCPU = 1 << 16

// cpuList reads a file in the kernel's list format ("0-55,112-167"); a file that
// isn't there is "".
func cpuList(path string) (string, error) {
	text, err := readOptional(path)
	if err != nil {
		return "", err
	}
	if err := checkCPUList(text); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// checkCPUList accepts what cpuset files accept: ascending numbers and ranges.
// The list is handed on as text, into the specs of containers.
func checkCPUList(list string) error {
	if list == "" {
		return nil
	}
	next := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, aerr := strconv.ParseUint(first, 10, 32)
		b, berr := strconv.ParseUint(last, 10, 32)
		if aerr != nil || berr != nil || int(a) < next || b < a || b >= maxCPU {
			return fmt.Errorf("parse %q of CPU list %q: want ascending numbers and ranges", part, list)
		}
		next = int(b) + 1
	}
	return nil
}
