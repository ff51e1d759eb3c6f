package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/doctor"
	"github.com/berth-gpu/berth/hook/setup"
)

// TestStyledWriter: how changes and findings look, with and without colours.
func TestStyledWriter(t *testing.T) {
	edited := setup.Change{
		Path:   "/etc/x.json",
		Before: setup.File{Exists: true, Data: []byte("{\"a\":1}")},
		After:  setup.File{Exists: true, Data: []byte("{\"a\":1,\"b\":2}")},
	}
	changes := []setup.Change{
		edited,
		{Path: "/etc/new", After: setup.File{Exists: true, Data: []byte("x\n")}},
		{Path: "/etc/empty", Before: setup.File{Exists: true}},
		{Path: "/data/link", Before: setup.File{Exists: true, Link: "/old"}, After: setup.File{Exists: true, Link: "/new"}},
	}
	plain := "--- /etc/x.json\n+++ /etc/x.json\n@@ -1 +1 @@\n-{\"a\":1}\n\\ No newline at end of file\n+{\"a\":1,\"b\":2}\n\\ No newline at end of file\n" +
		"--- /dev/null\n+++ /etc/new\n@@ -0,0 +1 @@\n+x\n" +
		"--- /etc/empty\n+++ /dev/null\n" +
		"-link /data/link -> /old\n+link /data/link -> /new\n" +
		"warning  docker         isn't set up; fix: berth setup docker\n" +
		"\n0 ok, 1 warning, 0 failures\n"
	coloured := "\x1b[1m--- /etc/x.json\x1b[0m\n\x1b[1m+++ /etc/x.json\x1b[0m\n\x1b[36m@@ -1 +1 @@\x1b[0m\n\x1b[31m-{\"a\":1}\x1b[0m\n"
	for _, colours := range []bool{false, true} {
		var b strings.Builder
		p := styledWriter{Writer: &b, colours: colours}
		for _, c := range changes {
			p.printChange(c)
		}
		p.printFindings([]doctor.Finding{{State: doctor.Warning, About: "docker", Text: "isn't\nset up", Fix: "berth setup docker"}}, false)
		switch got := b.String(); {
		case !colours:
			if diff := cmp.Diff(plain, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		case !strings.HasPrefix(got, coloured) || !strings.Contains(got, "\x1b[33mwarning\x1b[0m"):
			t.Errorf("got %q", got)
		}
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if newStyledWriter(file).colours {
		t.Error("a file shows colours")
	}
}

// TestFindingsOnATerminal: long lines are broken below their text, and --quiet leaves out what is ok.
func TestFindingsOnATerminal(t *testing.T) {
	var b strings.Builder
	styledWriter{Writer: &b, width: 60}.printFindings([]doctor.Finding{
		{State: doctor.OK, About: "driver", Text: "550.163.01, 8 GPUs"},
		{State: doctor.Failure, About: "links", Text: "no link to a device: /dev/char/195:0; containers lose GPUs", Fix: "berth discover"},
	}, true)
	want := "failure  links          no link to a device:\n" +
		"                        /dev/char/195:0; containers lose\n" +
		"                        GPUs; fix: berth discover\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestColours: on a terminal, unless its user wants none.
func TestColours(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	for _, c := range []struct {
		name, noColour, term string
		want                 bool
	}{{"a terminal", "", "xterm", true}, {"NO_COLOR", "1", "xterm", false}, {"a dumb one", "", "dumb", false}} {
		t.Setenv("NO_COLOR", c.noColour)
		t.Setenv("TERM", c.term)
		if got := newStyledWriter(terminal).colours; got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestWhyOnATerminal: each reason is below what it is of, within the terminal's width.
func TestWhyOnATerminal(t *testing.T) {
	var b strings.Builder
	err := styledWriter{Writer: &b, width: 50}.printWhyNarrow([][]string{
		{"train", "device", "/dev/nvidia0", "device GPU-4f1a, and more words than fit into one line"},
		{"train", "no capability", "CAP_MKNOD", "it makes nodes"},
	})
	want := "train\n" +
		"  device         /dev/nvidia0\n" +
		"                   device GPU-4f1a, and more words\n" +
		"                   than fit into one line\n" +
		"  no capability  CAP_MKNOD\n" +
		"                   it makes nodes\n"
	if diff := cmp.Diff(want, b.String()); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
