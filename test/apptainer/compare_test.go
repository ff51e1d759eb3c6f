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
	// differs is the reason for an intended difference of berth.
	differs string
}

// observed is the file with what Apptainer does: the uses with the lines that are typed, the lines of the two outputs, the
// files that are left, and the end. Entries have no empty lines.
const observed = "testdata/apptainer.txt"

// TestUses runs all uses with Apptainer and compares the outcomes with those in testdata. With -berth it runs them with
// berth, too, and compares berth with Apptainer.
func TestUses(t *testing.T) {
	s := startServer(t)
	all := slices.Concat(environmentUses, userUses, directoryUses, mountUses, processUses, imageUses, gpuUses, messageUses)
	have := readObserved(t)
	entries := make([]string, len(all))
	t.Run("use", func(t *testing.T) { // which ends when all of its parallel tests have ended
		for i, u := range all {
			if slices.ContainsFunc(all[:i], func(o use) bool { return o.name == u.name }) {
				t.Fatalf("two uses are called %q", u.name)
			}
			t.Run(u.name, func(t *testing.T) {
				t.Parallel()
				theirs, err := s.run(apptainerProgram, u.script)
				rig.Must(t, err)
				theirs.Out, theirs.Err = normalize(theirs.Out), removeLines(normalize(theirs.Err), noise)
				entries[i] = describeOutcome(u, theirs)
				if diff := cmp.Diff(have[u.name], entries[i]); diff != "" && !*update {
					t.Errorf("%s isn't what Apptainer does; go test ./test/apptainer -update writes it (-have +want):\n%s", observed, diff)
				}
				if *withBerth {
					compareBerth(t, s, u, theirs)
				}
			})
		}
	})
	if *update {
		if slices.Contains(entries, "") {
			t.Fatal("-update needs all uses")
		}
		rig.Must(t, os.WriteFile(observed, []byte(strings.Join(entries, "\n")), 0o644))
		return
	}
	for name := range have {
		if !slices.ContainsFunc(all, func(u use) bool { return u.name == name }) {
			t.Errorf("%s has the use %q, which doesn't exist", observed, name)
		}
	}
}

// readObserved returns the entries of testdata by the names of their uses.
func readObserved(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(observed)
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

// compareBerth runs a use with berth. The programs have their own messages, so these are not compared.
func compareBerth(t *testing.T, s *server, u use, theirs outcome) {
	t.Helper()
	ours, err := s.run(berthProgram, u.script)
	rig.Must(t, err)
	said := ours.Err
	ours.Out, ours.Err, theirs.Err = normalize(ours.Out), removeLines(normalize(ours.Err), message), removeLines(theirs.Err, message)
	diff := cmp.Diff(theirs, ours)
	switch {
	case diff != "" && u.differs == "":
		t.Errorf("%s\n(-apptainer +berth):\n%s\nberth says: %s", u.script, diff, said)
	case diff == "" && u.differs != "":
		t.Errorf("%s\nit is listed as different, and both do %+v", u.script, theirs)
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
	// noise are messages of Apptainer about this server's programs, and about unmounting in time.
	noise = regexp.MustCompile(`^INFO: +(\w+ not found, will not be able|Terminating [\w-]+ after timeout|Timeouts can be caused by)`)
	// message is the beginning of messages of the two programs.
	message = regexp.MustCompile(`^(INFO: |WARNING: |FATAL: |Error for command |Error: |berth: |$)`)
	// usage is printed with the message about a wrong command line.
	usage = regexp.MustCompile(`(?s)(^|\n)(Options for \w+ command:|Usage:)\n.*`)
)

// normalize removes the values of one run from a text, and the help that follows a message about a wrong command line.
func normalize(text string) string {
	return namespace.ReplaceAllString(usage.ReplaceAllString(text, ""), ":[N]")
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
