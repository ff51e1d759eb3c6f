package tasks

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestPublishedPort: what notebooks' recipes say, -p PORT:PORT, starts the task, which is reached
// there, and says so.
func TestPublishedPort(t *testing.T) {
	t.Parallel()
	s := startServer(t, "dgx-h100", "v2", "crun")
	const port = "18888"
	got := s.RunBerth(t, "run", "-d", "--runtime", s.runtime, "--name", "notebook", "-p", "127.0.0.1:"+port+":"+port, rig.ImagePath(t, "busybox"),
		"sh", "-c", "echo notebook >/index.html; exec httpd -f -h / -p 127.0.0.1:"+port)
	t.Cleanup(func() { s.RunBerth(t, "rm", "-f", "notebook") })
	if got.Code != 0 || got.Err != "berth: the task shares the host's network: its port 18888 is the host's, and not only at 127.0.0.1 unless it listens there alone\n" {
		t.Fatalf("berth run -p: %+v", got)
	}
	var page string
	rig.WaitUntil(t, "the server answers", func() bool {
		page = s.Run(t, s.Command("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/`+port+` && printf 'GET /index.html HTTP/1.0\r\n\r\n' >&3 && cat <&3`)).Out
		return page != ""
	})
	if !strings.Contains(page, "\nnotebook\n") {
		t.Errorf("the server says %q", page)
	}
	s.fails(t, 125, "--publish 8080:80: the task shares the host's network, where ports aren't mapped: have it listen on 8080, and publish 8080:8080",
		"run", "-p", "8080:80", rig.ImagePath(t, "busybox"), "true")
}
