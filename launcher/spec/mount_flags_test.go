package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func bindMount(dst, src string, options ...string) specs.Mount {
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: options}
}

func tmpfsMount(dst string, options ...string) specs.Mount {
	return specs.Mount{Destination: dst, Type: "tmpfs", Source: "tmpfs", Options: options}
}

func TestParseMount(t *testing.T) {
	for _, tt := range []struct {
		text  string
		want  specs.Mount
		fails string
	}{
		{text: "type=bind,src=/etc,dst=/x", want: bindMount("/x", "/etc", "rbind", "rprivate")},
		{text: "type=bind,source=/etc,target=/x/,readonly", want: bindMount("/x", "/etc", "rbind", "rprivate", "ro")},
		{text: "type=bind,source=/etc,destination=/x,ro=true,bind-propagation=rslave", want: bindMount("/x", "/etc", "rbind", "rslave", "ro")},
		{text: "type=bind,src=/etc,dst=/x,readonly=false", want: bindMount("/x", "/etc", "rbind", "rprivate")},
		{text: "type=bind,src=/etc,dst=/x,bind-nonrecursive", want: bindMount("/x", "/etc", "bind", "rprivate")},
		{text: "type=bind,src=/etc,dst=/x,bind-recursive=disabled,consistency=cached", want: bindMount("/x", "/etc", "bind", "rprivate")},
		{text: `type=bind,src=/etc,"dst=/a,b"`, want: bindMount("/a,b", "/etc", "rbind", "rprivate")},
		{text: "type=tmpfs,dst=/x", want: tmpfsMount("/x", "nosuid", "nodev", "noexec", "mode=1777")},
		{text: "type=tmpfs,dst=/x,tmpfs-size=1g,tmpfs-mode=700,ro", want: tmpfsMount("/x", "nosuid", "nodev", "noexec", "size=1073741824", "mode=700", "ro")},
		{text: "", fails: "not a list of KEY=VALUE"},
		{text: "type=bind,src=/etc", fails: "no dst"},
		{text: "type=bind,dst=/x", fails: "no src"},
		{text: "type=bind,src=/etc,dst=x", fails: "x is not an absolute path"},
		{text: "type=bind,src=/etc,dst=/", fails: "/ is not an absolute path below /"},
		{text: "type=bind,src=/no/such,dst=/x", fails: "no such file"},
		{text: "type=bind,src=/etc,dst=/x,dst=/y", fails: "dst is given twice: /x and /y"},
		{text: "type=bind,src=/etc,dst=/x,bind-propagation=up", fails: `bind-propagation "up"`},
		{text: "type=bind,src=/etc,dst=/x,bind-recursive=readonly", fails: `bind-recursive "readonly"`},
		{text: "type=bind,src=/etc,dst=/x,readonly=maybe", fails: `readonly "maybe" is neither`},
		{text: "type=bind,src=/etc,dst=/x,tmpfs-size=1g", fails: "tmpfs-size is for type=tmpfs"},
		{text: "type=tmpfs,src=/etc,dst=/x", fails: "src is for type=bind"},
		{text: "type=tmpfs,dst=/x,tmpfs-size=lots", fails: `size "lots" is not a size`},
		{text: "type=tmpfs,dst=/x,tmpfs-mode=999", fails: `mode "999" is not an octal number`},
		{text: "type=bind,src=/etc,dst", fails: "dst has no value"},
		{text: "type=bind,src=/etc,dst=/x,colour=red", fails: `key "colour" is not known`},
		{text: "type=volume,src=data,dst=/x", fails: "berth has no volumes with names; type=bind,src=DIR"},
		{text: "src=data,dst=/x", fails: "berth has no volumes with names"},
		{text: "type=volume,dst=/x,volume-nocopy", fails: "volume-nocopy is of volumes"},
		{text: "type=image,src=x,dst=/x", fails: `type "image" is not known`},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseMount(tt.text)
			expectOutcome(t, got, tt.want, err, tt.fails)
		})
	}
}

// expectOutcome compares a value, or the one line of an error.
func expectOutcome[T any](t *testing.T, got, want T, err error, fails string) {
	t.Helper()
	if fails != "" {
		if err == nil || !strings.Contains(err.Error(), fails) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want one line with %q", err, fails)
		}
		return
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestParseTmpfs(t *testing.T) {
	for _, tt := range []struct {
		text  string
		want  specs.Mount
		fails string
	}{
		{text: "/x", want: tmpfsMount("/x", "nosuid", "nodev", "noexec", "mode=1777")},
		{text: "/x:", want: tmpfsMount("/x", "nosuid", "nodev", "noexec", "mode=1777")},
		{text: "/x:rw,exec,size=64m,mode=0755,uid=7", want: tmpfsMount("/x", "nosuid", "nodev", "rw", "exec", "size=67108864", "mode=755", "uid=7")},
		{text: "/x:size=50%,ro", want: tmpfsMount("/x", "nosuid", "nodev", "noexec", "size=50%", "ro", "mode=1777")},
		{text: "", fails: "no dst"},
		{text: "x", fails: "x is not an absolute path"},
		{text: "/x:dev", fails: "dev: device nodes don't work on it"},
		{text: "/x:ro,rw", fails: "both ro and rw"},
		{text: "/x:size=200%", fails: `size "200%" is not a size`},
		{text: "/x:huge=always", fails: `unknown option "huge=always"`},
		{text: "/x:mode", fails: `unknown option "mode"`},
		{text: "/x:uid=root", fails: `uid "root" is not a number`},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseTmpfs(tt.text)
			expectOutcome(t, got, tt.want, err, tt.fails)
		})
	}
}

// Whatever is written, what comes out is a mount that lies below the root and names
// no options that were not checked.
func FuzzParseMount(f *testing.F) {
	for _, s := range []string{"type=bind,src=/etc,dst=/x,ro", "type=tmpfs,dst=/x,tmpfs-size=1g", `"a=b`, "type=tmpfs,dst=/x,tmpfs-mode=1,tmpfs-mode=01"} {
		f.Add(s)
	}
	known := []string{"bind", "rbind", "private", "rprivate", "slave", "rslave", "shared", "rshared", "ro", "nosuid", "nodev", "noexec"}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMount(s)
		if err != nil {
			return
		}
		if !strings.HasPrefix(m.Destination, "/") || m.Destination == "/" || strings.Contains(m.Destination, "/../") {
			t.Errorf("%q goes to %q", s, m.Destination)
		}
		for _, o := range m.Options {
			key, _, has := strings.Cut(o, "=")
			if !has && !slices.Contains(known, o) || has && key != "size" && key != "mode" {
				t.Errorf("%q has the option %q", s, o)
			}
		}
	})
}

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
		{text: "~/data:/x", fails: "~/data: no such file or directory; the shell replaces no ~ within quotes: $HOME stands for the home directory"},
		{text: "/no/such:/x", fails: "no such file or directory; for an empty directory: mkdir -p /no/such"},
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

// TestNoSocket: a directory in the place of a socket would keep its server from starting.
func TestNoSocket(t *testing.T) {
	_, err := ParseVolume("/no/such.sock:/x")
	if err == nil || !strings.HasSuffix(err.Error(), "stat /no/such.sock: no such file or directory") {
		t.Error(err)
	}
}
