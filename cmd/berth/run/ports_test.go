package run

import (
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher"
)

func TestParsePort(t *testing.T) {
	for text, want := range map[string]port{
		"8888":                {"", portRange{0, 0}, portRange{8888, 8888}},
		"8888:8888":           {"", portRange{8888, 8888}, portRange{8888, 8888}},
		":80":                 {"", portRange{0, 0}, portRange{80, 80}},
		"8080:80/tcp":         {"", portRange{8080, 8080}, portRange{80, 80}},
		"127.0.0.1:8888:8888": {"127.0.0.1", portRange{8888, 8888}, portRange{8888, 8888}},
		"127.0.0.1::53/udp":   {"127.0.0.1", portRange{0, 0}, portRange{53, 53}},
		"6006-6010:6006-6010": {"", portRange{6006, 6010}, portRange{6006, 6010}},
		"[::1]:8888:8888":     {"::1", portRange{8888, 8888}, portRange{8888, 8888}},
	} {
		if got, err := parsePort(text); err != nil || got != want {
			t.Errorf("%s is %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "0", "65536", "80:", "80:x", "host:80:80", "80:80/icmp", "-1", "1:2:3:4", "80-70:80-70", "80-:80-", "80-90-95"} {
		if got, err := parsePort(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// TestPublish: a port that the host's network can serve is accepted. Other values are refused with
// advice.
func TestPublish(t *testing.T) {
	for typed, want := range map[string]string{
		"-p 8888:8888":                     "",
		"-p 8888":                          "",
		"-p 127.0.0.1:8888:8888":           "",
		"-p 8888:8888 --network host -n 2": "",
		"-p 8080:80":                       "have it listen on 8080, and publish 8080:8080",
		"-p 80:80 --network none":          "the network none can't be reached from outside; --network host",
		"-p 80:80 -n 2":                    "the network private can't be reached from outside; --network host",
		"-p 80-90:80-90":                   "",
		"-p 8000-9000:80":                  "have it listen on 8000-9000, and publish",
	} {
		run := Command()
		run.Action = func(c *cli.Context) error { return readPorts(c, &launcher.Options{}) }
		app := &cli.App{Commands: []*cli.Command{run}, ExitErrHandler: func(*cli.Context, error) {}}
		err := app.Run(strings.Fields("berth run " + typed + " image"))
		if got := ""; err != nil {
			if got = err.Error(); want == "" || !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %q", typed, got, want)
			}
		} else if want != "" {
			t.Errorf("%s is accepted, want %q", typed, want)
		}
	}
}
