// Package cpulist reads and writes the kernel's list format for CPUs and NUMA nodes, such as
// "0-3,8" (Documentation/admin-guide/cputopology.rst).
package cpulist

import (
	"fmt"
	"strconv"
	"strings"
)

// Max bounds the numbers of a list, and so its length.
const Max = 1 << 16

// Parse returns the numbers of a list, in the order of the list.
func Parse(list string) ([]int, error) {
	var numbers []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || a < 0 || b < a || b >= Max {
			return nil, fmt.Errorf("CPU list %q: %q is neither a number nor a range", list, part)
		}
		for ; a <= b; a++ {
			numbers = append(numbers, a)
		}
	}
	return numbers, nil
}

// Format returns numbers in list format, without ranges.
func Format(numbers []int) string {
	text := make([]string, len(numbers))
	for i, n := range numbers {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}
