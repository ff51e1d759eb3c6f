package everyday

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// terminalUser is a user at a terminal with a shell, whose prompt is "out>".
type terminalUser struct {
	*rig.Node
	t      *testing.T
	socket string
}

func newTerminalUser(t *testing.T) terminalUser {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Fatal("needs tmux: make deps")
	}
	n, err := shared.Start("dgx-h100", "v1")
	rig.Must(t, err)
	d := terminalUser{n, t, filepath.Join(t.TempDir(), "tmux")}
	d.tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30",
		"env", "PATH="+shared.Dir+":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "PS1=out> ", "box=oci:"+shared.Dir+"/images:latest", "bash", "--norc", "--noprofile")
	t.Cleanup(func() {
		_ = d.Command("sh", "-c", shared.Berth+" rm -f $("+shared.Berth+" ps -aq)").Run() // there may be none
		d.tmux("kill-server")
	})
	d.waitForText("out>")
	return d
}

func (d terminalUser) tmux(words ...string) string {
	d.t.Helper()
	return d.Do(d.t, "tmux", append([]string{"-S", d.socket}, words...)...)
}

// types types a line.
func (d terminalUser) types(line string) {
	d.t.Helper()
	d.tmux("send-keys", "-l", line)
	d.tmux("send-keys", "Enter")
}

// presses presses keys, such as C-c.
func (d terminalUser) presses(keys ...string) {
	d.t.Helper()
	d.tmux(append([]string{"send-keys"}, keys...)...)
}

// waitForText waits until a text is or was on the screen. Typed text is echoed, so the expected texts are
// typed in two parts.
func (d terminalUser) waitForText(text string) {
	d.t.Helper()
	var seen string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if seen = d.tmux("capture-pane", "-p", "-J", "-S", "-"); strings.Contains(seen, text) {
			return
		}
	}
	d.t.Fatalf("the terminal doesn't show %q:\n%s", text, seen)
}

// checkSane checks that the terminal is a shell's again: lines are edited, and echoed.
func (d terminalUser) checkSane(mark string) {
	d.t.Helper()
	d.types(`stty -a | tr ' ' '\n' | grep -cx -e icanon -e echo -e isig -e opost; echo sa''ne ` + mark)
	d.waitForText("\n4\nsane " + mark)
}

// TestTTY uses a real terminal: typed text reaches only the task, its size follows the terminal's,
// and afterwards the terminal is the shell's again, however berth has ended.
func TestTTY(t *testing.T) {
	skipUnlessWanted(t)
	d := newTerminalUser(t)
	d.types("berth run --rm -it --name first $box sh; echo ou''ter $?")
	d.types("stty size | sed 's/^/si''ze /'")
	d.waitForText("size 30 100")
	d.tmux("resize-window", "-x", "90", "-y", "20")
	d.types(`until [ "$(stty size)" = "20 90" ]; do sleep 0.1; done; echo re''sized`)
	d.waitForText("resized")

	d.types("sh -c 'echo be''gun; exec sleep 1000'")
	d.waitForText("begun")
	d.presses("C-c")
	d.types("echo in''terrupted $?")
	d.waitForText("interrupted 130")
	d.types("sh -c 'echo on''ce more; exec sleep 1000'")
	d.waitForText("once more")
	d.presses("C-z")
	d.waitForText("Stopped")
	d.types("kill -9 %1; wait; echo stop''ped inside")
	d.waitForText("stopped inside")
	d.types("exec sh -c 'exit 7'")
	d.waitForText("outer 7")
	d.checkSane("after run")

	t.Run("exec", func(t *testing.T) {
		d := d
		d.t = t
		d.types("berth run -d --name second $box sleep 1000")
		d.types("berth exec -it second sh; echo ex''ec code $?")
		d.types("stty size | sed 's/^/ex''ec /'; tty")
		d.waitForText("exec 20 90")
		d.waitForText("/dev/pts/")
		d.tmux("resize-window", "-x", "80", "-y", "25")
		d.types(`until [ "$(stty size)" = "25 80" ]; do sleep 0.1; done; echo ex''ec resized; exit 3`)
		d.waitForText("exec resized")
		d.waitForText("exec code 3")
		d.checkSane("after exec")
	})
	t.Run("attach", func(t *testing.T) {
		d := d
		d.t = t
		d.types("berth run -dit --name third $box sh >/dev/null; echo de''tached")
		d.waitForText("detached")
		d.types("berth attach third")
		d.types(`until [ "$(stty size)" = "25 80" ]; do sleep 0.1; done; echo at''tached`)
		d.waitForText("attached")
		d.presses("C-p", "C-q")
		d.types("echo le''ft $?; berth ps -q --filter name=third | wc -l")
		d.waitForText("left 0\n1\n")
		d.checkSane("after leaving")
		d.types("berth attach third; echo attach''ed to $?")
		d.types("echo ag''ain; exit 5")
		d.waitForText("attached to 5")
		d.checkSane("after attach")
	})
	t.Run("killed", func(t *testing.T) {
		d := d
		d.t = t
		for _, words := range []string{"run -it --name fourth $box sh", "exec -it second sh"} {
			verb, _, _ := strings.Cut(words, " ")
			d.types(`sh -c 'echo $$ >` + d.socket + verb + `; exec berth ` + words + `'; echo ki''lled ` + verb + ` $?`)
			d.types("echo in''side " + verb)
			d.waitForText("inside " + verb)
			d.Do(t, "sh", "-c", "kill -9 $(cat "+d.socket+verb+")")
			d.waitForText("killed " + verb + " 137")
			d.checkSane("after kill of " + verb)
			d.types("clear")
		}
	})
}
