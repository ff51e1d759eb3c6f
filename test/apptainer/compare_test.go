package apptainer

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// use is one use of Apptainer.
type use struct {
	name string
	// script is run by sh in an empty home directory. /images has the images: see buildImages.
	script string
	// differs is the reason why berth does something else on purpose.
	differs string
}

// The files with outcomes: the uses with the lines that are typed, the lines of the two outputs, the files that are left, and the
// end. Entries have no empty lines.
const (
	apptainerOutcomes = "testdata/apptainer.txt"
	berthOutcomes     = "testdata/berth.txt" // of the uses that differ
)

// TestUses runs all uses with both programs. Apptainer has to do what testdata says. berth has to do the same, or, in a use that
// differs, what testdata says of berth.
func TestUses(t *testing.T) {
	s := startServer(t)
	all := slices.Concat(environmentUses, userUses, directoryUses, mountUses, processUses, imageUses, signatureUses, instanceUses, gpuUses, messageUses)
	have, haveBerth := readOutcomes(t, apptainerOutcomes), readOutcomes(t, berthOutcomes)
	entries, berthEntries := make([]string, len(all)), make([]string, len(all))
	t.Run("use", func(t *testing.T) { // which ends when all of its parallel tests have ended
		for i, u := range all {
			if slices.ContainsFunc(all[:i], func(o use) bool { return o.name == u.name }) {
				t.Fatalf("two uses are called %q", u.name)
			}
			t.Run(u.name, func(t *testing.T) {
				t.Parallel()
				theirs, err := s.run(apptainerProgram, u.script)
				rig.Must(t, err)
				theirs.Err = removeLines(theirs.Err, noise)
				entries[i] = describeOutcome(u, theirs)
				compareEntries(t, apptainerOutcomes, have[u.name], entries[i])
				ours, err := s.run(berthProgram, u.script)
				rig.Must(t, err)
				diff := cmp.Diff(removeMessages(theirs), removeMessages(ours))
				switch {
				case diff != "" && u.differs == "":
					t.Errorf("%s\n(-apptainer +berth):\n%s\nberth says: %s", u.script, diff, ours.Err)
				case diff == "" && u.differs != "":
					t.Errorf("%s\nit is listed as different (%s), and both do %+v", u.script, u.differs, theirs)
				case diff != "":
					berthEntries[i] = describeOutcome(u, ours)
					compareEntries(t, berthOutcomes, haveBerth[u.name], berthEntries[i])
				}
			})
		}
	})
	if *update {
		if slices.Contains(entries, "") {
			t.Fatal("-update needs all uses")
		}
		writeOutcomes(t, apptainerOutcomes, entries)
		writeOutcomes(t, berthOutcomes, berthEntries)
		return
	}
	for name := range have {
		if !slices.ContainsFunc(all, func(u use) bool { return u.name == name }) {
			t.Errorf("%s has the use %q, which doesn't exist", apptainerOutcomes, name)
		}
	}
	for name := range haveBerth {
		if !slices.ContainsFunc(all, func(u use) bool { return u.name == name && u.differs != "" }) {
			t.Errorf("%s has the use %q, and no such use differs", berthOutcomes, name)
		}
	}
}

// readOutcomes returns the entries of a file by the names of their uses.
func readOutcomes(t *testing.T, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if *update && errors.Is(err, os.ErrNotExist) {
		return nil
	}
	rig.Must(t, err)
	entries := map[string]string{}
	for entry := range strings.SplitSeq(string(data), "\n\n") {
		entry = strings.TrimRight(entry, "\n") + "\n"
		name, _, _ := strings.Cut(strings.TrimPrefix(entry, "== "), "\n")
		entries[name] = entry
	}
	return entries
}

// writeOutcomes writes the entries that aren't "".
func writeOutcomes(t *testing.T, file string, entries []string) {
	t.Helper()
	entries = slices.DeleteFunc(entries, func(e string) bool { return e == "" })
	rig.Must(t, os.WriteFile(file, []byte(strings.Join(entries, "\n")), 0o644))
}

func compareEntries(t *testing.T, file, have, want string) {
	t.Helper()
	if diff := cmp.Diff(have, want); diff != "" && !*update {
		t.Errorf("%s doesn't have what the program does; go test ./test/apptainer -update writes it (-have +want):\n%s", file, diff)
	}
}

// describeOutcome returns the entry of a use in testdata.
func describeOutcome(u use, o outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "== %s\n", u.name)
	for _, part := range []struct{ mark, text string }{
		{"type ", u.script}, {"out  ", o.Out}, {"err  ", o.Err}, {"file ", strings.Join(o.Files, "\n")}, {"end  ", o.End},
	} {
		for line := range strings.Lines(part.text) {
			b.WriteString(part.mark + "|" + strings.TrimRight(line, "\n") + "\n")
		}
	}
	return b.String()
}

var (
	namespace = regexp.MustCompile(`:\[\d+\]`)
	gpuNode   = regexp.MustCompile(`\bnvidia\d\b`) // berth chooses a free one
	// fingerprint and created are of keys that the server has made.
	fingerprint = regexp.MustCompile(`\b([0-9A-F]{40}|[0-9a-f]{40})\b`)
	created     = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC`)
	stopped     = regexp.MustCompile(`\((PID=|process )\d+\)`)
	// noise are messages of Apptainer about this server's programs and cgroups, and about unmounting in time.
	noise = regexp.MustCompile(`^INFO: +(\w+ not found, will not be able|Instance stats will not be available|Terminating [\w-]+ after timeout|Timeouts can be caused by|Cleanup error: while stopping driver)`)
	// message is the beginning of messages of the two programs.
	message = regexp.MustCompile(`^(INFO: |WARNING: |FATAL: |Error for command |Error: |berth: |\n)`)
	// usage is printed with the message about a wrong command line.
	usage = regexp.MustCompile(`(?s)(^|\n)(Options for \w+ command:|Usage:)\n.*`)
)

// normalize removes the values of one run from a text, and the help that follows a message about a wrong command line.
func normalize(text string) string {
	text = namespace.ReplaceAllString(usage.ReplaceAllString(text, ""), ":[N]")
	text = fingerprint.ReplaceAllString(created.ReplaceAllString(text, "TIME"), "FINGERPRINT")
	text = stopped.ReplaceAllString(text, "(${1}N)")
	return gpuNode.ReplaceAllString(text, "nvidiaN")
}

// removeMessages returns an outcome without the programs' messages, which are their own.
func removeMessages(o outcome) outcome {
	o.Err = removeLines(o.Err, message)
	return o
}

func removeLines(text string, which *regexp.Regexp) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !which.MatchString(line) {
			b.WriteString(line)
		}
	}
	return b.String()
}
