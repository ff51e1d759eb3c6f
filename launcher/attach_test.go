package launcher

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/attach"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// client is one that is attached, with all that it has heard.
type client struct {
	t    *testing.T
	conn *os.File
	buf  []byte
	out  map[attach.Kind]string
}

func (d *detached) attach() *client {
	d.rig.t.Helper()
	conn, err := attach.Dial(d.rig.store().Socket(d.id))
	if err != nil {
		d.rig.t.Fatal(err)
	}
	d.rig.t.Cleanup(func() { conn.Close() })
	return &client{t: d.rig.t, conn: conn, buf: make([]byte, attach.Max), out: map[attach.Kind]string{}}
}

func (c *client) send(k attach.Kind, data string) {
	c.t.Helper()
	if err := attach.Write(c.conn, k, []byte(data)); err != nil {
		c.t.Fatal(err)
	}
}

// until hears until what came of the kind ends with text.
func (c *client) until(k attach.Kind, text string) {
	c.t.Helper()
	for !strings.HasSuffix(c.out[k], text) {
		kind, data, err := attach.Read(c.conn, c.buf)
		if err != nil {
			c.t.Fatalf("%v, having heard %q", err, c.out)
		}
		c.out[kind] += string(data)
	}
}

func TestAttach(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("while read x; do echo $x; echo no $x >&2; test $x = end && exit 6; done", func(j *job) { j.Interactive = true })
		a, b, quiet := d.attach(), d.attach(), d.attach()
		quiet.send(attach.Quiet, "")
		a.send(attach.Stdin, "hello\n")
		for _, c := range []*client{a, b} {
			c.until(attach.Stdout, "hello\n")
			c.until(attach.Stderr, "no hello\n")
		}
		// A client that detaches ends nothing.
		a.conn.Close()
		b.send(attach.Stdin, "end\n")
		b.until(attach.Stdout, "hello\nend\n")
		b.until(attach.Exit, "\x06")
		quiet.until(attach.Exit, "\x06")
		if quiet.out[attach.Exit] != "\x06" {
			t.Errorf("%q", quiet.out)
		}
		expectExit(t, d.end(), tasks.Exit{Code: 6})
		d.remove()
	})
}

// Signals sent by an attached client have the effect that they have outside a container.
func TestAttachSignals(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		for line, want := range map[string]int{
			"echo ready; exec sleep 1000":                                 130,
			"trap 'exit 3' INT; echo ready; while :; do sleep 0.01; done": 3,
		} {
			d := r.detach(line, nil)
			d.waitForLine("out: ready")
			if strings.Contains(line, "exec") {
				waitForProgram(t, strconv.Itoa(d.task().Life.Init.PID), "sleep")
			}
			a := d.attach()
			a.send(attach.Signal, string(rune(unix.SIGINT)))
			a.until(attach.Exit, string([]byte{byte(want)}))
			if got := d.end(); got.Code != want {
				t.Errorf("%s: %+v", line, got)
			}
			d.remove()
		}
	})
}

func TestDetachedTerminal(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("read x; stty size; tty; read x; exit 8", func(j *job) { j.Terminal = true })
		a := d.attach()
		a.send(attach.Resize, "\x00\x11\x00\x22") // 17 rows, 34 columns
		a.send(attach.Stdin, "\n")
		a.until(attach.Stdout, "17 34\r\n/dev/pts/0\r\n")
		a.send(attach.Stdin, "\n")
		a.until(attach.Exit, "\x08")
		expectExit(t, d.end(), tasks.Exit{Code: 8})
		if got := d.log(); !strings.Contains(got, "17 34\r\n") {
			t.Errorf("log %q", got)
		}
		d.remove()
	})
}

// A client that doesn't read is disconnected; neither the task nor its log waits for it.
func TestAttachTooSlow(t *testing.T) {
	r := newAnyRig(t)
	d := r.detach("read x; head -c 8000000 /dev/zero; echo; echo last", func(j *job) { j.Interactive = true })
	slow := d.attach()
	slow.send(attach.Stdin, "go\n")
	expectExit(t, d.end(), tasks.Exit{})
	if got := d.log(); !strings.HasSuffix(got, "out: last\n") {
		t.Errorf("the log ends with %q", got[max(0, len(got)-20):])
	}
	d.remove()
}

// No line is lost when monitors are killed while a task writes as fast as it can; at
// most some are there twice.
func TestLogOfKilledMonitors(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		const lines = 30000
		d := r.detach(fmt.Sprintf("i=0; while test $i -lt %d; do i=$((i+1)); echo line $i; done; exec 3<>/go/go; read x <&3", lines), func(j *job) {
			path, volume := makeFIFO(t)
			j.Volumes = []string{volume}
			t.Cleanup(func() { os.Remove(path) })
		})
		for n := range 4 {
			d.waitForLine(fmt.Sprintf("out: line %d", 1+n*lines/5))
			d.killMonitor()
			r.adopt()
		}
		d.waitForLine(fmt.Sprintf("out: line %d", lines))
		seen := make([]int, lines+1)
		last, back := 0, 0
		err := logs.Read(context.Background(), r.store().Path(d.id, "log"), logs.Query{Tail: -1}, joinEntries(func(line string) {
			var n int
			if _, err := fmt.Sscanf(line, "line %d", &n); err != nil || n < 1 || n > lines {
				t.Errorf("odd line %q", line)
				return
			}
			seen[n]++
			if n < last {
				back++
			}
			last = n
		}))
		if err != nil {
			t.Fatal(err)
		}
		twice := 0
		for n, count := range seen[1:] {
			if count == 0 {
				t.Fatalf("line %d is lost", n+1)
			}
			if count > 1 {
				twice++
			}
		}
		t.Logf("%d of %d lines are there twice, in %d places", twice, lines, back)
		if back > 4 {
			t.Errorf("the log goes back %d times, and only 4 monitors were killed", back)
		}
		if err := unix.Kill(d.task().Life.Monitor.PID, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		d.exit()
		d.remove()
	})
}

// joinEntries hands out whole lines of standard output. A part that is followed by itself
// again, as a whole line, was written twice.
func joinEntries(give func(line string)) func(logs.Entry) error {
	part := ""
	return func(e logs.Entry) error {
		text := string(e.Text)
		if e.Partial {
			part += text
			return nil
		}
		line := part + text
		if i := strings.LastIndex(line, "line"); i > 0 {
			line = line[i:] // the beginning is there twice
		}
		give(line)
		part = ""
		return nil
	}
}

func TestOOM(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		if got := r.sh("true", func(j *job) { j.Memory = 32 << 20 }); strings.Contains(got.stderr, "no cgroup controller") {
			return // nothing runs out of what has no limit
		}
		d := r.detach("dd if=/dev/zero of=/dev/null bs=200M count=1; exit 9", func(j *job) { j.Memory = 32 << 20 })
		if got := d.end(); !got.OOM {
			t.Errorf("%+v; log %q", got, d.log())
		}
		d.remove()
		for _, tc := range []struct {
			name, script string
			want         tasks.Exit
			stderr       string
		}{
			{"the first process", "exec dd if=/dev/zero of=/dev/null bs=200M count=1", tasks.Exit{Code: 137, OOM: true}, "berth: out of memory: the kernel has killed the task; its limit is 32 MiB (--memory)"},
			{"another", "dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null; exit 9", tasks.Exit{Code: 9, OOM: true}, "berth: out of memory: the kernel has killed a process of the task; its limit is 32 MiB (--memory)"},
			{"another, which changes nothing", "dd if=/dev/zero of=/dev/null bs=200M count=1 2>/dev/null; exit 0", tasks.Exit{OOM: true}, ""},
			{"none", "exit 137", tasks.Exit{Code: 137}, ""},
		} {
			t.Run(tc.name, func(t *testing.T) {
				got := r.sh(tc.script, func(j *job) { j.Memory, j.Lasting.Keep, j.Name = 32<<20, true, "starved" })
				_, said, _ := strings.Cut("\n"+strings.TrimSpace(got.stderr), "\nberth: ") // after the shell's
				if said != "" {
					said = "berth: " + said
				}
				if got.code != tc.want.Code || said != tc.stderr {
					t.Errorf("code %d, %q", got.code, got.stderr)
				}
				kept, err := r.store().Find("starved")
				if err != nil || kept.Exit == nil {
					t.Fatalf("%+v, %v", kept, err)
				}
				expectExit(t, *kept.Exit, tc.want)
				if err := control.Remove(t.Context(), r.store(), kept, false); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// Twenty monitors need little memory: most of it is their program's, and shared.
func TestMonitorsAreSmall(t *testing.T) {
	r := newAnyRig(t)
	const many = 20
	all := make([]*detached, many)
	for i := range all {
		all[i] = r.detach("echo ready; exec sleep 1000", nil)
	}
	total := 0
	for _, d := range all {
		d.waitForLine("out: ready")
		text := readFile(t, fmt.Sprintf("/proc/%d/smaps_rollup", d.cmd.Process.Pid))
		_, text, _ = strings.Cut(text, "\nPss:")
		var kb int
		if _, err := fmt.Sscan(text, &kb); err != nil {
			t.Fatal(err)
		}
		total += kb
	}
	t.Logf("%d kB for each of %d monitors", total/many, many)
	if total/many > 3<<10 {
		t.Errorf("%d kB for each of %d monitors", total/many, many)
	}
	for _, d := range all {
		if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Error(err)
		}
	}
	for _, d := range all {
		d.end()
		d.remove()
	}
}
