package run

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/verbtest"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func TestParseBytes(t *testing.T) {
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

func TestReadLifecycle(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want launcher.Lifecycle
		err  string
	}{
		{name: "nothing said"},
		{name: "in the foreground", args: []string{"--rm"}},
		{name: "kept", args: []string{"--rm=false"}, want: launcher.Lifecycle{Keep: true}},
		{name: "detached", args: []string{"-d"}, want: launcher.Lifecycle{Keep: true}},
		{name: "detached, and not kept", args: []string{"-d", "--rm"}},
		{name: "restart", args: []string{"-d", "--restart", "on-failure:3"}, want: launcher.Lifecycle{Keep: true, Restart: tasks.Restart{Policy: "on-failure", Max: 3}}},
		{name: "odd restart", args: []string{"--restart", "often"}, err: `--restart: restart policy "often" is not known`},
		{name: "timeout in seconds", args: []string{"--timeout", "90"}, want: launcher.Lifecycle{Timeout: 90 * time.Second}},
		{name: "timeout", args: []string{"--timeout", "2h"}, want: launcher.Lifecycle{Timeout: 2 * time.Hour}},
		{name: "odd timeout", args: []string{"--timeout", "-1s"}, err: `--timeout "-1s": not a time, such as 90s or 2h`},
		{name: "log", args: []string{"--log-opt", "max-size=1m", "--log-opt", "max-file=5"}, want: launcher.Lifecycle{LogLimit: tasks.LogLimit{Size: 1 << 20, Files: 5}}},
		{name: "tiny log", args: []string{"--log-opt", "max-size=1k"}, err: "a file of the log has at least 64k"},
		{name: "no files", args: []string{"--log-opt", "max-file=0"}, err: "not a number of files from 1 to 1000"},
		{name: "odd option", args: []string{"--log-opt", "tag=x"}, err: `--log-opt "tag=x": there are max-size and max-file`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := verbtest.ParseFlags(t, lifecycleFlags(), tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			var o launcher.Options
			err = readLifecycle(c, &o)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, o.Lifecycle); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
