package cgroup

import (
	"errors"
	"strings"
	"testing"
)

func TestParseMembership(t *testing.T) {
	v1 := Hierarchy{Version: V1, Root: "/sys/fs/cgroup/devices", Controller: "devices"}
	v2 := Hierarchy{Version: V2, Root: "/sys/fs/cgroup"}
	const hybrid = "9:name=systemd:/init.scope\n5:blkio,devices:/docker/4f0c\n4:memory:/other\n0::/unified/one\n"
	for _, tt := range []struct {
		name, file string
		h          Hierarchy
		want       string
		err        error
	}{
		{"v1 devices, mounted together", hybrid, v1, "/docker/4f0c", nil},
		{"v2 line of a hybrid", hybrid, v2, "/unified/one", nil},
		{"v2 alone", "0::/system.slice/docker-4f0c.scope\n", v2, "/system.slice/docker-4f0c.scope", nil},
		{"removed under a zombie", "0::/berth/4f0c (deleted)\n", v2, "/berth/4f0c", nil},
		{"colon in the path", "0::/a:b:c\n", v2, "/a:b:c", nil},
		{"root", "0::/\n", v2, "/", nil},
		{"no devices controller", "0::/\n", v1, "", ErrNone},
		{"outside of this cgroup namespace", "0::/../../other\n", v2, "", ErrPath},
		{"empty", "", v2, "", ErrNone},
		{"garbage", "\x00::\n:::\n", v2, "", ErrNone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.h.parseMembership([]byte(tt.file))
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestPredictPath(t *testing.T) {
	for _, tt := range []struct {
		name    string
		version Version
		p       Placement
		want    string
		err     error
	}{
		{"absolute", V2, Placement{CgroupsPath: "/docker/4f0c"}, "/docker/4f0c", nil},
		{"absolute, unclean", V1, Placement{CgroupsPath: "//berth/./4f0c/"}, "/berth/4f0c", nil},
		{"escape", V2, Placement{CgroupsPath: "/berth/../../4f0c"}, "", ErrPath},
		{"relative escape", V1, Placement{CgroupsPath: "../4f0c", Own: "/a"}, "", ErrPath},
		{"runc relative on v1", V1, Placement{CgroupsPath: "x/y", Own: "/user"}, "/user/x/y", nil},
		{"runc relative on v2", V2, Placement{CgroupsPath: "x/y", Own: "/user/shell"}, "/user/x/y", nil},
		{"runc relative, own is the root", V2, Placement{CgroupsPath: "x", Own: "/"}, "/x", nil},
		{"runc without a path", V1, Placement{Container: "c1", Own: "/"}, "/c1", nil},
		{"crun relative", V2, Placement{CgroupsPath: "x/y", Own: "/user/shell", Runtime: "crun"}, "/x/y", nil},
		{"crun without a path", V2, Placement{Container: "c1", Own: "/user", Runtime: "crun"}, "/c1", nil},
		{"systemd", V2, Placement{CgroupsPath: "system.slice:docker:4f0c", Systemd: true}, "/system.slice/docker-4f0c.scope", nil},
		{"systemd, nested slice", V1, Placement{CgroupsPath: "a-b-c.slice:cri:4f", Systemd: true}, "/a.slice/a-b.slice/a-b-c.slice/cri-4f.scope", nil},
		{"systemd, root slice", V2, Placement{CgroupsPath: "-.slice:p:n", Systemd: true}, "/p-n.scope", nil},
		{"systemd, no prefix", V2, Placement{CgroupsPath: "user.slice::n", Systemd: true}, "/user.slice/n.scope", nil},
		{"systemd, default slice", V2, Placement{CgroupsPath: ":docker:n", Systemd: true}, "/system.slice/docker-n.scope", nil},
		{"systemd, a slice as the container", V2, Placement{CgroupsPath: "a.slice:p:a-b.slice", Systemd: true}, "/a.slice/a-b.slice", nil},
		{"systemd, no path", V2, Placement{Container: "c1", Systemd: true}, "/system.slice/runc-c1.scope", nil},
		{"systemd, no path, crun", V2, Placement{Container: "c1", Systemd: true, Runtime: "crun"}, "/system.slice/crun-c1.scope", nil},
		{"systemd, two parts", V2, Placement{CgroupsPath: "a.slice:b", Systemd: true}, "", ErrPath},
		{"systemd, path as a name", V2, Placement{CgroupsPath: "a.slice:b:/../c", Systemd: true}, "", ErrPath},
		{"systemd, bad slice", V2, Placement{CgroupsPath: "a--b.slice:b:c", Systemd: true}, "", ErrPath},
		{"systemd, path as a slice", V2, Placement{CgroupsPath: "/a/b.slice:b:c", Systemd: true}, "", ErrPath},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Hierarchy{Version: tt.version}.PredictPath(tt.p)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestUnder(t *testing.T) {
	const outer = "a-berth1.2.x.slice"
	for _, tt := range []struct {
		name string
		p    Placement
		want string
		err  error
	}{
		{"of a slice", Placement{CgroupsPath: "a.slice:docker:4f"}, "a-berth1.2.x.slice:docker:4f", nil},
		{"no prefix", Placement{CgroupsPath: "a.slice::4f"}, "a-berth1.2.x.slice::4f", nil},
		{"default slice", Placement{CgroupsPath: ":docker:4f"}, "a-berth1.2.x.slice:docker:4f", nil},
		{"no path", Placement{Container: "c1"}, "a-berth1.2.x.slice:runc:c1", nil},
		{"no path, crun", Placement{Container: "c1", Runtime: "crun"}, "a-berth1.2.x.slice:crun:c1", nil},
		{"a slice as the container", Placement{CgroupsPath: "a.slice:p:a-b.slice"}, "", ErrPath},
		{"two parts", Placement{CgroupsPath: "a.slice:b"}, "", ErrPath},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.p.Systemd = true
			got, err := tt.p.Under(outer)
			if !errors.Is(err, tt.err) || err == nil && got.CgroupsPath != tt.want {
				t.Fatalf("got %q, %v; want %q, %v", got.CgroupsPath, err, tt.want, tt.err)
			}
			if err != nil {
				return
			}
			before, err := Hierarchy{Version: V2}.PredictPath(tt.p)
			after, err2 := Hierarchy{Version: V2}.PredictPath(got)
			if want := "/a.slice/" + outer + before[strings.LastIndexByte(before, '/'):]; after != want || err != nil || err2 != nil {
				t.Errorf("placed at %q, %v, %v; want %q", after, err, err2, want)
			}
		})
	}
}

func TestPathOf(t *testing.T) {
	h := Hierarchy{Version: V1, Root: "/sys/fs/cgroup/devices"}
	for _, tt := range []struct {
		name, dir, want string
		ok              bool
	}{
		{"below", "/sys/fs/cgroup/devices/berth/4f", "/berth/4f", true},
		{"itself", "/sys/fs/cgroup/devices/", "/", true},
		{"another tree", "/sys/fs/cgroup/memory/berth/4f", "", false},
		{"longer name", "/sys/fs/cgroup/devices2/4f", "", false},
		{"escape", "/sys/fs/cgroup/devices/../memory", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := h.PathOf(tt.dir)
			if got != tt.want || ok != tt.ok {
				t.Errorf("got %q, %v; want %q, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestIsWithin(t *testing.T) {
	for _, tt := range []struct {
		name, path, top string
		want            bool
	}{
		{"same", "/a/b", "/a/b", true},
		{"below", "/a/b/c", "/a/b", true},
		{"root", "/a", "/", true},
		{"longer name", "/a/bc", "/a/b", false},
		{"above", "/a", "/a/b", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := IsWithin(tt.path, tt.top); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// FuzzPredictPath: for any spec, the result is a clean path inside the tree or an error.
func FuzzPredictPath(f *testing.F) {
	f.Add("/a/b", "id", false, "runc", "/user")
	f.Add("a-b.slice:docker:4f0c", "id", true, "crun", "/")
	f.Add("../../x", "..", false, "runc", "/..")
	f.Fuzz(func(t *testing.T, path, id string, systemd bool, runtime, own string) {
		for _, v := range []Version{V1, V2} {
			h := Hierarchy{Version: v, Root: "/sys/fs/cgroup"}
			got, err := h.PredictPath(Placement{path, id, systemd, runtime, own})
			if err != nil {
				continue
			}
			dir, err := h.Dir(got)
			if err != nil || !IsWithin(dir, h.Root) || strings.Contains(dir, "/../") {
				t.Errorf("placed at %q: %q, %v", got, dir, err)
			}
		}
	})
}

func TestCrunWorks(t *testing.T) {
	for _, tt := range []struct {
		name       string
		h          Hierarchy
		lift, want bool
	}{
		{"v1", Hierarchy{Version: V1}, false, true},
		{"hybrid", Hierarchy{Version: V1, Hybrid: true}, true, false},
		{"v2", Hierarchy{Version: V2}, true, true},
		{"v2, limited memory", Hierarchy{Version: V2}, false, false},
	} {
		if got := tt.h.CrunWorks(tt.lift); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
