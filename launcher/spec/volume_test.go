package spec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestParseVolume(t *testing.T) {
	bind := func(src, dst string, options ...string) specs.Mount {
		return specs.Mount{Source: src, Destination: dst, Type: "bind", Options: options}
	}
	for _, tt := range []struct {
		text  string
		want  specs.Mount
		fails string
	}{
		{text: "/etc:/x", want: bind("/etc", "/x", "rbind", "rprivate")},
		{text: "/etc/:/x/../y/", want: bind("/etc", "/y", "rbind", "rprivate")},
		{text: "/etc:/x:ro,bind,rslave,nosuid", want: bind("/etc", "/x", "bind", "rslave", "ro", "nosuid")},
		{text: "/etc", fails: "is not SRC:DST"},
		{text: "/etc:", fails: "is not SRC:DST"},
		{text: ":/x", fails: "is not SRC:DST"},
		{text: "/etc:/x:ro:rw", fails: "is not SRC:DST"},
		{text: "/etc:x", fails: "x is not an absolute path"},
		{text: "/etc:/a/..", fails: "/a/.. is not an absolute path below /"},
		{text: "/etc:/x:z", want: bind("/etc", "/x", "rbind", "rprivate")},
		{text: "/etc:/x:ro,Z,cached,delegated,consistent", want: bind("/etc", "/x", "rbind", "rprivate", "ro")},
		{text: "/no/such:/x", fails: "no such file or directory; if it is to be an empty directory: mkdir -p /no/such"},
		{text: "/etc:/x:y", fails: `unknown option "y"`},
		{text: "/etc:/x:ro,rw", fails: "both ro and rw"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseVolume(tt.text)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("error %v, want %q", err, tt.fails)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestIsCovered(t *testing.T) {
	mounts := []specs.Mount{{Destination: "/a/b"}}
	for path, want := range map[string]bool{"/a/b": true, "/a/b/c": true, "/a/bc": false, "/a": false} {
		if IsCovered(mounts, path) != want {
			t.Errorf("%s: %v, want %v", path, !want, want)
		}
	}
}
