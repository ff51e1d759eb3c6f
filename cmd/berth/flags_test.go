package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
)

// parsed gives the context of a verb's flags, as its action gets it.
func parsed(t *testing.T, flags []cli.Flag, args ...string) (c *cli.Context, err error) {
	t.Helper()
	app := &cli.App{
		Name: "berth", Writer: io.Discard, ErrWriter: io.Discard, Flags: flags, ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error { return err },
		Action:       func(got *cli.Context) error { c = got; return nil },
	}
	err = app.RunContext(context.Background(), append([]string{"berth"}, args...))
	return c, err
}

func TestWait(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want time.Duration
	}{
		{"nothing said", nil, 0},
		{"for ever", []string{"--wait"}, -1},
		{"for a while", []string{"--wait=10m"}, 10 * time.Minute},
		{"not at all", []string{"--wait=0s"}, 0},
		{"switched off", []string{"--wait=false"}, 0},
		{"no-wait", []string{"--no-wait"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, err := parsed(t, waitFlags(), c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := waitOf(ctx); got != c.want {
				t.Errorf("waits %v, want %v", got, c.want)
			}
		})
	}
}

// TestContradiction: nobody has to guess which of the two counts.
func TestContradiction(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--wait", "--no-wait"}, "--wait and --no-wait contradict each other; berth --help shows the usage"},
		{[]string{"--no-wait", "--wait=1h"}, "--wait and --no-wait contradict each other; berth --help shows the usage"},
		{[]string{"--no-wait", "--wait=0s"}, "<nil>"},
		{[]string{"--no-wait", "--wait=false"}, "<nil>"},
		{[]string{"--no-wait=false", "--wait"}, "<nil>"},
		{[]string{"--wait", "10m"}, "the duration of --wait is attached with =: --wait=10m; berth --help shows the usage"},
	} {
		ctx, err := parsed(t, waitFlags(), c.args...)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(checkWait(ctx)); got != c.want {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
}

func TestUnfitWait(t *testing.T) {
	for _, value := range []string{"soon", "-1s", "10", ""} {
		if _, err := parsed(t, waitFlags(), "--wait="+value); err == nil {
			t.Errorf("--wait=%s is taken", value)
		}
	}
}

// TestPatienceIsOfOneRun: a flag's value belongs to its command, not to the program.
func TestPatienceIsOfOneRun(t *testing.T) {
	if _, err := parsed(t, waitFlags(), "--wait"); err != nil {
		t.Fatal(err)
	}
	ctx, err := parsed(t, waitFlags())
	if err != nil {
		t.Fatal(err)
	}
	if got := waitOf(ctx); got != 0 {
		t.Errorf("waits %v", got)
	}
}

func TestPatienceString(t *testing.T) {
	for _, c := range []struct {
		p    *patience
		want string
	}{{nil, ""}, {&patience{}, ""}, {&patience{set: true, limit: time.Minute}, "1m0s"}} {
		if got := c.p.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestBytesOf(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
		ok   bool
	}{
		{"", 0, true},
		{"1", 1, true},
		{"100b", 100, true},
		{"1k", 1 << 10, true},
		{"512m", 512 << 20, true},
		{"512M", 512 << 20, true},
		{"64g", 64 << 30, true},
		{"64gb", 64 << 30, true},
		{"64GiB", 64 << 30, true},
		{"2t", 2 << 40, true},
		{"1.5g", 3 << 29, true},
		{"0", 0, false},
		{"-1g", 0, false},
		{"g", 0, false},
		{"1x", 0, false},
		{"1 g", 0, false},
		{"1gg", 0, false},
		{"1mk", 0, false},
		{"NaN", 0, false},
		{"Inf", 0, false},
		{"1e30g", 0, false},
		{"9999999t", 0, false},
		{"0x10", 0, false},
		{"1_0", 0, false},
	} {
		set := flag.NewFlagSet("", flag.ContinueOnError)
		set.String("memory", c.text, "")
		got, err := parseBytes(cli.NewContext(nil, set, nil), "memory")
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q is %d (%v), want %d, fit %v", c.text, got, err, c.want, c.ok)
		}
	}
}

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		flag cli.Flag
		want string
	}{
		{&cli.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "a terminal"}, "--tty, -t\ta terminal"},
		{&cli.StringFlag{Name: "cpus", Usage: "at most `N` CPUs"}, "--cpus N\tat most N CPUs"},
		{&cli.StringFlag{Name: "network", Usage: "which", Value: "host"}, "--network VALUE\twhich (default: host)"},
		{&cli.StringFlag{Name: "config", Usage: "read `FILE`", EnvVars: []string{"BERTH_CONFIG"}}, "--config FILE\tread FILE [$BERTH_CONFIG]"},
		{waitFlags()[0], "--wait[=DURATION]\twait in the queue until the devices are free; --wait=DURATION: for so long at most"},
	} {
		if got := describeFlag(c.flag); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
