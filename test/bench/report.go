package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"
)

// heading returns the machine and the date for the file of results.
func heading(rounds int) string {
	return fmt.Sprintf("# Benchmarks\n\nMade by `make bench` on %s: %d rounds, cases interleaved, medians.\n\n", time.Now().UTC().Format(time.DateOnly), rounds) +
		fmt.Sprintf("Machine: %s, %d CPUs, Linux %s, %s, %s. The GPUs are simulated (a DGX of eight, and sixteen where it says so; cgroup v2); containers, walls and ledger are real.\n",
			cpu(), runtime.NumCPU(), firstLine("uname", "-r"), firstLine("runc", "--version"), firstLine("crun", "--version"))
}

func cpu() string {
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t: "))
		}
	}
	return "unknown CPU"
}

func firstLine(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return name + " unknown"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// print writes the section as a Markdown table whose columns line up.
func (s section) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", s.title, s.about)
	widths := make([]int, len(s.rows[0]))
	for _, row := range s.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for i, row := range s.rows {
		line(&b, row, widths, " ")
		if i == 0 {
			line(&b, make([]string, len(row)), widths, "-")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func line(b *strings.Builder, row []string, widths []int, fill string) {
	b.WriteString("|")
	for i, cell := range row {
		b.WriteString(" " + cell + strings.Repeat(fill, widths[i]-utf8.RuneCountInString(cell)) + " |")
	}
	b.WriteString("\n")
}
