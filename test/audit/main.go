// Command audit reads the output of `go test -json` and prints a summary: a line for each package,
// the output of failed tests, and the counts.
//
// A skipped test proves nothing, so each skipped test has to be listed in skips.txt with its
// reason; any other skip fails the run. So does a run in which no test ran.
package main

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"sort"
	"strings"
)

//go:embed skips.txt
var expected string

// event is one line of `go test -json` (go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
	// ImportPath is set on build output instead of Package.
	ImportPath string
}

// tally counts the results.
type tally struct {
	passed, failed int
	skipped        []string
	broken         []string
	output         map[string][]string // by package and test, until that ends
	ends           []string            // the last lines of the first failed tests
}

func main() {
	t, err := read(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "audit:", err)
		os.Exit(1)
	}
	if !t.report(os.Stdout, allowed(expected)) {
		os.Exit(1)
	}
}

func read(r io.Reader, w io.Writer) (*tally, error) {
	t := &tally{output: map[string][]string{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(w, lines.Text())
			continue
		}
		t.add(e, w)
	}
	return t, lines.Err()
}

func (t *tally) add(e event, w io.Writer) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		t.output[key] = append(t.output[key], e.Output)
		return
	case "build-output":
		fmt.Fprint(w, e.Output)
		return
	case "pass", "skip":
		defer delete(t.output, key)
	case "fail":
		fmt.Fprint(w, strings.Join(t.output[key], ""))
		t.keepEnd(e, t.output[key])
		defer delete(t.output, key)
	default:
		return
	}
	if e.Test == "" {
		if e.Action == "fail" {
			t.broken = append(t.broken, e.Package)
			t.printUnended(e.Package, w)
		}
		if e.Action != "skip" {
			fmt.Fprintf(w, "%-5s %s  %.1fs\n", e.Action, e.Package, e.Elapsed)
		}
		return
	}
	switch e.Action {
	case "pass":
		t.passed++
	case "fail":
		t.failed++
	case "skip":
		t.skipped = append(t.skipped, key+": "+reason(t.output[key]))
	}
}

// Of the output of the first failed tests the last lines are repeated at the end, for logs that are cut.
const (
	repeatedTests = 8
	repeatedLines = 25
)

func (t *tally) keepEnd(e event, output []string) {
	if e.Test == "" || len(t.ends) == repeatedTests {
		return
	}
	last := output[max(0, len(output)-repeatedLines):]
	t.ends = append(t.ends, e.Package+" "+e.Test+":\n"+strings.Join(last, ""))
}

// printUnended prints the output of a package's tests that have no result, as after a panic or the package's timeout.
func (t *tally) printUnended(pkg string, w io.Writer) {
	for _, key := range slices.Sorted(maps.Keys(t.output)) {
		if strings.HasPrefix(key, pkg+" ") && key != pkg+" " {
			fmt.Fprint(w, strings.Join(t.output[key], ""))
			delete(t.output, key)
		}
	}
}

// reason returns the message with which a test skipped itself.
func reason(output []string) string {
	for _, line := range output {
		if s := strings.TrimSpace(line); s != "" && !strings.HasPrefix(s, "===") && !strings.HasPrefix(s, "---") {
			return s
		}
	}
	return "no reason given"
}

// expectations are the expected skips: "package test" patterns.
type expectations []string

// allowed reads the list of expected skips: package and test, in which * stands
// for anything, one a line.
func allowed(list string) expectations {
	var all expectations
	for line := range strings.Lines(list) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) == 2 {
			all = append(all, f[0]+" "+f[1])
		}
	}
	return all
}

// allow reports whether a skip is expected. A * also matches the slashes of subtests.
func (e expectations) allow(name string) bool {
	flat := strings.NewReplacer("/", ".")
	return slices.ContainsFunc(e, func(pattern string) bool {
		ok, err := path.Match(flat.Replace(pattern), flat.Replace(name))
		return ok && err == nil
	})
}

func (t *tally) report(w io.Writer, allowed expectations) bool {
	good := t.failed == 0 && len(t.broken) == 0
	sort.Strings(t.skipped)
	for _, s := range t.skipped {
		name, _, _ := strings.Cut(s, ": ")
		verdict := "expected skip"
		if !allowed.allow(name) && os.Getenv("BERTH_TEST_ROOT") == "1" {
			verdict, good = "UNEXPECTED SKIP", false
		}
		fmt.Fprintf(w, "%s: %s\n", verdict, s)
	}
	for _, end := range t.ends {
		fmt.Fprint(w, end)
	}
	for _, p := range t.broken {
		fmt.Fprintln(w, "FAILED:", p)
	}
	if t.passed+t.failed == 0 {
		fmt.Fprintln(w, "no test ran")
		good = false
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", t.passed, t.failed, len(t.skipped))
	return good
}
