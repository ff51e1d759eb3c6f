package bundle

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestMergeRules: rules of a filter for other system calls are neither lost nor rewritten.
func TestMergeRules(t *testing.T) {
	const read, refused, escaped = `{"names":["read"], "action":"SCMP_ACT_ALLOW"}`, `{"names":["mbind"],"action":"SCMP_ACT_ERRNO"}`, `{"names":["m\u0062ind"],"action":"SCMP_ACT_ERRNO"}`
	allow := []specs.LinuxSyscall{{Names: []string{"mbind"}, Action: specs.ActAllow}}
	narrowed := []specs.LinuxSyscall{{Names: []string{"mbind"}, Action: specs.ActErrno}}
	const both = `{"names":["mbind","fanotify_init"], "action":"SCMP_ACT_ERRNO"}`
	const allowed = `{"names":["mbind"],"action":"SCMP_ACT_ALLOW"}`
	for _, tt := range []struct {
		name, rules string
		seen        int // by whom it is decoded for
		after       []specs.LinuxSyscall
		want        string
	}{
		{"one comes to others", `"syscalls":[` + read + `],`, 0, allow, `"syscalls":[` + read + `,` + allowed + `],`},
		{"one comes to none", `"syscalls":[],`, 0, allow, `"syscalls":[` + allowed + `],`},
		{"one goes", `"syscalls":[` + refused + `, ` + read + `],`, 1, nil, `"syscalls":[` + read + `],`},
		{"one is changed", `"syscalls":[` + refused + `,` + read + `],`, 1, allow, `"syscalls":[` + read + `,` + allowed + `],`},
		{"one isn't written plainly", `"syscalls":[` + escaped + `,` + read + `],`, 1, allow, `"syscalls":[` + read + `,` + allowed + `],`},
		{
			"one loses a name, and keeps its place", `"syscalls":[` + both + `,` + read + `],`, 1, narrowed,
			`"syscalls":[{"names":["mbind"],"action":"SCMP_ACT_ERRNO"},` + read + `],`,
		},
		{"one goes, and another keeps its place", `"syscalls":[` + allowed + `,` + read + `,` + refused + `,` + read + `],`, 2, narrowed, `"syscalls":[` + read + `,` + refused + `,` + read + `],`},
		{"there were none", ``, 0, allow, `"syscalls":[` + allowed + `]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := `{"ociVersion":"1.0.2","linux":{"seccomp":{` + tt.rules + `"defaultAction":"SCMP_ACT_ERRNO"}}}`
			d := parse(t, text)
			spec, err := d.Spec()
			if err != nil {
				t.Fatal(err)
			}
			if got := spec.Linux.Seccomp.Syscalls; len(got) != tt.seen || len(got) > 0 && got[0].Names[0] != "mbind" {
				t.Fatalf("decoded %+v", got)
			}
			same, err := d.Edit(spec)
			if err != nil || string(same.Bytes()) != text {
				t.Errorf("without a change: %s, %v", same.Bytes(), err)
			}
			spec.Linux.Seccomp.Syscalls = tt.after
			got, err := d.Edit(spec)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(got.Bytes()), tt.want) {
				t.Errorf("got %s\nwant %s", got.Bytes(), tt.want)
			}
			again, err := parse(t, string(got.Bytes())).Spec()
			if err != nil || cmp.Diff(tt.after, again.Linux.Seccomp.Syscalls, cmpopts.EquateEmpty()) != "" {
				t.Errorf("read back: %+v, %v", again, err)
			}
		})
	}
}
