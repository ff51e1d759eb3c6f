package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/image"
)

// Settings win over the image, and host and privileges decide the rest.
func TestContainer(t *testing.T) {
	config := image.Config{Env: []string{"A=image"}, Entrypoint: []string{"entry"}, WorkingDir: "/image"}
	v2 := Host{Cgroups: cgroup.Hierarchy{Version: cgroup.V2}}
	v1 := Host{Cgroups: cgroup.Hierarchy{Version: cgroup.V1}}
	for _, tt := range []struct {
		name     string
		settings Settings
		host     Host
		lifts    bool
		is       func(Container) any
		want     any
	}{
		{"environment", Settings{Env: []string{"A=flag"}}, v2, false, func(c Container) any { return c.Env }, []string{"A=image", "A=flag"}},
		{"the image's directory", Settings{}, v2, false, func(c Container) any { return c.Dir }, "/image"},
		{"directory", Settings{Dir: "/flag"}, v2, false, func(c Container) any { return c.Dir }, "/flag"},
		{"the host's network", Settings{Network: "host"}, v2, false, func(c Container) any { return c.HostNetwork }, true},
		{"no network", Settings{Network: "none"}, v2, false, func(c Container) any { return c.HostNetwork }, false},
		{"cgroup namespace on v2", Settings{}, v2, false, func(c Container) any { return c.CgroupNamespace }, true},
		{"cgroup namespace on v1", Settings{}, v1, false, func(c Container) any { return c.CgroupNamespace }, false},
		{"cgroup namespace if rules can be lifted", Settings{}, v1, true, func(c Container) any { return c.CgroupNamespace }, true},
		{"the host's cgroup namespace", Settings{CgroupNS: "host"}, v2, false, func(c Container) any { return c.CgroupNamespace }, false},
		{"no AppArmor", Settings{Security: Security{AppArmor: "unconfined"}}, v2, false, func(c Container) any { return c.AppArmor }, ""},
		{"AppArmor", Settings{Security: Security{AppArmor: "mine"}}, v2, false, func(c Container) any { return c.AppArmor }, "mine"},
		{"domain name", Settings{Domainname: "d"}, v2, false, func(c Container) any { return c.Sysctls }, map[string]string{"kernel.domainname": "d"}},
		{"privileged", Settings{Security: Security{Privileged: true}}, v2, true, func(c Container) any { return []bool{c.Exposed, c.NewPrivileges} }, []bool{true, true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := tt.settings.ChoosePrivileges(tt.host)
			if err != nil {
				t.Fatal(err)
			}
			p.NeedsOuterCgroup = tt.lifts
			if diff := cmp.Diff(tt.want, tt.is(tt.settings.Container(config, tt.host, p))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// What can change its own device rules is recognised by its privileges.
func TestNeedsOuterCgroup(t *testing.T) {
	all := Host{Capabilities: ^uint64(0)}
	for _, tt := range []struct {
		name     string
		security Security
		want     bool
	}{
		{"default", Security{}, false},
		{"fewer capabilities", Security{CapDrop: []string{"ALL"}}, false},
		{"a default one by its name", Security{CapAdd: []string{"CHOWN"}}, false},
		{"another capability", Security{CapAdd: []string{"SYS_ADMIN"}}, true},
		{"no filter", Security{Seccomp: "unconfined"}, true},
		{"privileged", Security{Privileged: true}, true},
	} {
		p, err := Settings{Security: tt.security}.ChoosePrivileges(all)
		if err != nil || p.NeedsOuterCgroup != tt.want {
			t.Errorf("%s: %v, %v, want %v", tt.name, p.NeedsOuterCgroup, err, tt.want)
		}
	}
	p, err := Settings{Security: Security{Privileged: true}}.ChoosePrivileges(all, "SYS_PTRACE")
	if err != nil || slices.Contains(p.Capabilities.Names, "CAP_SYS_PTRACE") {
		t.Errorf("%v, %v: a capability that is never given", p.Capabilities.Names, err)
	}
}

func TestAddInit(t *testing.T) {
	bindOnDev := []specs.Mount{{Destination: "/dev", Type: "bind", Source: "/dev"}}
	for _, tt := range []struct {
		name      string
		mounts    []specs.Mount
		readWrite bool
		want      string
		fails     string
	}{
		{name: "in /dev", want: "/dev/init"},
		{name: "/dev is covered", mounts: bindOnDev, want: "/.init"},
		{name: "image is written to", readWrite: true, want: "/dev/init"},
		{name: "no place", mounts: bindOnDev, readWrite: true, fails: "--init: the init program can be mounted neither"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Container{Args: []string{"sh"}, Mounts: tt.mounts}
			err := Settings{ReadWrite: tt.readWrite}.AddInit(&c, "/tasks/1/init")
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("error %v, want %q", err, tt.fails)
				}
				return
			}
			last := c.Mounts[len(c.Mounts)-1]
			if err != nil || last.Source != "/tasks/1/init" || last.Destination != tt.want || !slices.Contains(last.Options, "ro") || !slices.Equal(c.Args, []string{tt.want, "--", "sh"}) {
				t.Errorf("%v: %q, %+v", err, c.Args, last)
			}
		})
	}
}
