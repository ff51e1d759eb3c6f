package entry

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// dockers is the hook that Docker puts into a spec for --gpus.
func dockersHook() specs.Hook {
	const dir = "/var/lib/berth/engines/docker"
	return specs.Hook{
		Path: dir + "/nvidia-container-runtime-hook", Args: []string{"nvidia-container-runtime-hook", "prestart"},
		Env: []string{"HOME=/root", "PATH=" + dir + ":/usr/bin"},
	}
}

// withFlag is a container of docker run --gpus.
func withFlag(env ...string) *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{Env: env},
		//nolint:staticcheck // Docker still writes prestart hooks.
		Hooks: &specs.Hooks{Prestart: []specs.Hook{dockersHook()}},
	}
}

func ExampleFindRequest() {
	// docker run --gpus 2 of an image that says NVIDIA_VISIBLE_DEVICES=all.
	spec := withFlag("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0,1")
	fmt.Println(FindRequest(spec, RequestSet{}, Trust{}, nil))
	// Output: 2 true <nil>
}

// TestGPUFlag: the request of Docker's --gpus, read from the last variables of the environment.
func TestGPUFlag(t *testing.T) {
	for _, tt := range []struct{ value, want, err string }{
		{"0", "1", ""},
		{"0,1", "2", ""},
		{"0,1,2,3,4,5,6,7", "8", ""},
		{"all", "all", ""},
		{"ALL", "all", ""},
		{"void", "", ""},
		{"none", "", ""},
		{"", "", ""},
		{"1", "device=1", ""},
		{"1,0", "device=1,0", ""},
		{"0,2", "device=0,2", ""},
		{"0,1,3", "device=0,1,3", ""},
		{"00", "device=0", ""},
		{"GPU-8f4a,GPU-9000", "device=GPU-8f4a,GPU-9000", ""},
		{"MIG-03c1", "device=MIG-03c1", ""},
		{"0:1", "device=0:1", ""},
		{"0000:1b:00.0", "device=0000:1b:00.0", ""},
		{"h100:2", "h100:2", ""},
		{"1g.10gb:2", "1g.10gb:2", ""},
		{"1,+gds", "device=1,+gds", ""},
		{"0,1\n", "device=0,1", ""},
		{"2,2", "", "--gpus: request"},
		{"0;1", "", "--gpus: request"},
		{"device=0", "", "--gpus: request"},
		{"berth/gpus=2", "", "--gpus: request"},
		{counting(1000), "", "--gpus: request"},
		{strings.Repeat("9", 1<<20), "", "--gpus: request"},
	} {
		t.Run(fmt.Sprintf("%.20q", tt.value), func(t *testing.T) {
			spec := withFlag("NVIDIA_VISIBLE_DEVICES=all", "A=b", "NVIDIA_VISIBLE_DEVICES="+tt.value)
			asks(t, spec, Trust{VisibleDevices: Honour}, nil, tt.want, tt.err)
		})
	}
}

func counting(n int) string {
	var words []string
	for i := range n {
		words = append(words, strconv.Itoa(i))
	}
	return strings.Join(words, ",")
}

// asks reads the spec's request.
func asks(t *testing.T, spec *specs.Spec, trust Trust, named DeviceResolver, want, err string) {
	t.Helper()
	r, ok, e := FindRequest(spec, RequestSet{}, trust, named)
	if (e == nil) != (err == "") || e != nil && !strings.Contains(e.Error(), err) {
		t.Fatalf("error %v, want %q", e, err)
	}
	if e != nil && (len(e.Error()) > 1000 || strings.Contains(e.Error(), "\n")) {
		t.Errorf("%d bytes of error: %.200q", len(e.Error()), e)
	}
	if ok != (want != "") || ok && !strings.EqualFold(r.String(), want) {
		t.Errorf("got %q %v, want %q", r, ok, want)
	}
}

// TestGPUFlagIsDockers: only Docker's own hook stands for --gpus. The variable of an image is no
// request.
func TestGPUFlagIsDockers(t *testing.T) {
	change := func(f func(*specs.Hook)) *specs.Spec {
		s := withFlag("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0,1")
		f(&s.Hooks.Prestart[0]) //nolint:staticcheck // Docker still writes it.
		return s
	}
	annotated := func(key, value string) *specs.Spec {
		s := change(func(*specs.Hook) {})
		s.Annotations = map[string]string{key: value}
		return s
	}
	placed := func(place string) *specs.Spec {
		s := change(func(*specs.Hook) {})
		s.Linux = &specs.Linux{CgroupsPath: place}
		return s
	}
	told := func(s *specs.Spec) *specs.Spec {
		s.Mounts = []specs.Mount{{Destination: "/run/.containerenv"}}
		return s
	}
	both := func(a, b *specs.Spec) *specs.Spec {
		a.Annotations = b.Annotations
		return a
	}
	crio := told(placed("kubepods.slice:crio:0a"))
	twice := withFlag("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=GPU-1", "NVIDIA_DRIVER_CAPABILITIES=compute", "NVIDIA_VISIBLE_DEVICES=GPU-2")
	twice.Hooks.Prestart = append(twice.Hooks.Prestart, dockersHook()) //nolint:staticcheck // Docker still writes it.
	differ := withFlag("NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_VISIBLE_DEVICES=0")
	differ.Hooks.Prestart = append(differ.Hooks.Prestart, dockersHook()) //nolint:staticcheck // Docker still writes it.
	beside := func(request string) *specs.Spec {
		s := change(func(*specs.Hook) {})
		s.Hooks.CreateRuntime = []specs.Hook{hook("/berth-hook", "createRuntime", "--request", request)}
		return s
	}
	elsewhere := withFlag("NVIDIA_VISIBLE_DEVICES=0,1")
	elsewhere.Hooks = &specs.Hooks{Poststop: []specs.Hook{dockersHook()}}
	for _, tt := range []struct {
		name string
		spec *specs.Spec
		want string
		err  string
	}{
		{"docker's", change(func(*specs.Hook) {}), "2", ""},
		{"NVIDIA's hook in the daemon's PATH", change(func(h *specs.Hook) { h.Path = "/usr/bin/nvidia-container-runtime-hook" }), "2", ""},
		{"by another name", change(func(h *specs.Hook) { h.Path = "/usr/bin/nvidia-container-toolkit" }), "2", ""},
		{"of a PATH that isn't clean", change(func(h *specs.Hook) { h.Env = []string{"PATH=/bin:/var//lib/berth/engines/docker/"} }), "2", ""},
		{"NVIDIA's runtime's, which is in every container", change(func(h *specs.Hook) { h.Env = nil }), "", ""},
		{"found outside PATH", change(func(h *specs.Hook) { h.Env = []string{"PATH=/usr/bin"} }), "", ""},
		{"podman's directory of hooks, for every container", annotated("io.container.manager", "libpod"), "", ""},
		{"podman's, of an image that denies it", annotated("io.podman.annotations.autoremove", "FALSE"), "", ""},
		{"podman's, by its cgroup", placed("/libpod_parent/libpod-0a"), "", ""},
		{"CRI-O's, by what it mounts", crio, "", ""},
		{"docker's, by its cgroup", placed("system.slice:docker:0a"), "2", ""},
		{"docker's, with an annotation of podman's", both(placed("/docker/0a"), annotated("io.podman.annotations.init", "TRUE")), "2", ""},
		{"docker's, with the name of podman", both(placed("system.slice:docker:0a"), annotated("io.container.manager", "libpod")), "2", ""},
		{"docker's, with an annotation of Kubernetes'", both(placed("/docker/0a"), annotated("io.kubernetes.cri.container-type", "container")), "2", ""},
		{"docker's, with podman's mount, in a cgroup of its user's", told(placed("/mine/0a")), "2", ""},
		{"docker's, with podman's mount", told(placed("/docker/0a")), "2", ""},
		{"podman's, in a cgroup of its user's", placed("/docker/libpod-0a"), "", ""},
		{"podman's, without a cgroup", told(change(func(*specs.Hook) {})), "", ""},
		{"containerd's pods, in their cgroup", both(placed("/kubepods/pod1/0a"), annotated("io.kubernetes.cri.container-type", "container")), "", ""},
		{"CRI-O's", annotated("io.container.manager", "cri-o"), "", ""},
		{"containerd's pods", annotated("io.kubernetes.cri.container-type", "container"), "", ""},
		{"another hook", change(func(h *specs.Hook) { h.Path += "2" }), "", ""},
		{"a directory of that name", change(func(h *specs.Hook) { h.Path += "/x" }), "", ""},
		{"a word of that name", change(func(h *specs.Hook) { h.Path = "/bin/x" }), "", ""},
		{"at a later stage", elsewhere, "", ""},
		{"no process", &specs.Spec{Hooks: withFlag().Hooks}, "", ""},
		{"no variable", withFlag("A=b"), "", ""},
		{"two of them that name devices", twice, "device=GPU-2,GPU-1", ""},
		{"two of them that differ", differ, "", "contradicting requests"},
		{"beside berth's device that says the same", beside("2"), "2", ""},
		{"beside berth's device that says another", beside("3"), "", "contradicting requests"},
	} {
		t.Run(tt.name, func(t *testing.T) { asks(t, tt.spec, Trust{}, nil, tt.want, tt.err) })
	}
}

// TestGPUFlagOfContainerd: ctr run --gpus adds a hook of NVIDIA's program with the devices' indices.
func TestGPUFlagOfContainerd(t *testing.T) {
	ctr := func(words ...string) *specs.Spec {
		args := append([]string{"containerd", "oci-hook", "--", "/usr/bin/nvidia-container-cli", "--load-kmods", "configure"}, words...)
		return spec(specs.Hook{Path: "/usr/bin/containerd", Args: append(args, "--pid={{pid}}", "{{rootfs}}")})
	}
	for _, tt := range []struct {
		name string
		spec *specs.Spec
		want string
	}{
		{"one", ctr("--device=0"), "device=0"},
		{"two", ctr("--device=0,1", "--compute"), "device=0,1"},
		{"all", ctr("--device=all"), "all"},
		{"none", ctr(), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			asks(t, tt.spec, Trust{}, nil, tt.want, "")
			if StripSpec(tt.spec); len(tt.spec.Hooks.CreateRuntime) > 0 {
				t.Errorf("it stays: %+v", tt.spec.Hooks)
			}
		})
	}
}

// ofCDI is a container with devices of a spec of NVIDIA's: their minors, with rules.
func ofCDI(minors ...int64) *specs.Spec {
	s := &specs.Spec{
		Process: &specs.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib", "A=b"}},
		Hooks: &specs.Hooks{CreateContainer: []specs.Hook{
			{Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so"}},
			{Path: "/usr/bin/nvidia-cdi-hook", Args: []string{"nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib"}},
			{Path: "/bin/other"},
		}},
		Linux: &specs.Linux{Resources: &specs.LinuxResources{}},
	}
	for _, m := range append(minors, 255) {
		major := int64(195)
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: fmt.Sprint("/dev/nvidia", m), Type: "c", Major: major, Minor: m})
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &m, Access: "rwm"})
	}
	return s
}

// resolveEightGPUs GPUs, with indices that aren't their minors.
func resolveEightGPUs(nodes []specs.LinuxDevice) (all []gpu.Device, err error) {
	for _, d := range nodes {
		switch {
		case d.Major == 195 && d.Minor < 8:
			all = append(all, gpu.Device{UUID: fmt.Sprint("GPU-", d.Minor), Index: fmt.Sprint(7 - d.Minor)})
		case d.Major == 195 && d.Minor < 200:
			return nil, errors.New("no such GPU")
		}
	}
	return all, nil
}

func TestCDIDevices(t *testing.T) {
	count := Trust{CountIndices: true}
	privileged := ofCDI(3)
	for m := range int64(8) {
		if m != 3 {
			privileged.Linux.Devices = append(privileged.Linux.Devices, specs.LinuxDevice{Path: fmt.Sprint("/dev/nvidia", m), Type: "c", Major: 195, Minor: m})
		}
	}
	plain := ofCDI(3)
	plain.Hooks = nil
	annotated := ofCDI(3)
	annotated.Annotations = map[string]string{Annotation: "2"}
	oldTools := ofCDI(3)
	oldTools.Hooks.CreateContainer = []specs.Hook{{Path: "/usr/bin/nvidia-ctk", Args: []string{"nvidia-ctk", "hook", "update-ldcache"}}}
	both := ofCDI(3)
	both.Hooks.Prestart = []specs.Hook{dockersHook()} //nolint:staticcheck // Docker still writes it.
	kept := ofCDI(3)
	kept.Hooks.Prestart, kept.Process.Env = both.Hooks.Prestart, []string{"NVIDIA_VISIBLE_DEVICES=0,1"} //nolint:staticcheck // the same
	slice := func([]specs.LinuxDevice) ([]gpu.Device, error) {
		return []gpu.Device{{UUID: "MIG-1", Index: "0:0", Parent: "GPU-0"}}, nil
	}
	for _, tt := range []struct {
		name  string
		spec  *specs.Spec
		trust Trust
		named DeviceResolver
		want  string
		err   string
	}{
		{"one", ofCDI(3), Trust{}, resolveEightGPUs, "device=GPU-3", ""},
		{"two", ofCDI(3, 4), Trust{}, resolveEightGPUs, "device=GPU-3,GPU-4", ""},
		{"none but what all share", ofCDI(), Trust{}, resolveEightGPUs, "", ""},
		{"unknown", ofCDI(100), Trust{}, resolveEightGPUs, "", "NVIDIA's CDI devices: no such GPU"},
		{"of older tools", oldTools, Trust{}, resolveEightGPUs, "device=GPU-3", ""},
		{"privileged, whose nodes have no rules of their own", privileged, Trust{}, resolveEightGPUs, "device=GPU-3", ""},
		{"without a hook, nodes are no request", plain, Trust{}, resolveEightGPUs, "", ""},
		{"beside the annotation", annotated, Trust{}, resolveEightGPUs, "", "contradicting requests"},
		{"beside --gpus, which it has written over", both, Trust{}, resolveEightGPUs, "", "--gpus beside devices of NVIDIA's CDI spec"},
		{"beside --gpus", kept, Trust{}, resolveEightGPUs, "", "contradicting requests"},
		{"where nothing can be taken out", ofCDI(3), Trust{}, nil, "", ""},
		{"counted: 0 and 1", ofCDI(7, 6), count, resolveEightGPUs, "2", ""},
		{"counted: all", ofCDI(0, 1, 2, 3, 4, 5, 6, 7), count, resolveEightGPUs, "8", ""},
		{"counted: 1 alone", ofCDI(6), count, resolveEightGPUs, "device=1", ""},
		{"counted: 0 and 2", ofCDI(7, 5), count, resolveEightGPUs, "device=2,0", ""},
		{"counted: a slice", ofCDI(0), count, slice, "device=MIG-1", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := tt.want
			r, ok, err := FindRequest(tt.spec, RequestSet{}, tt.trust, tt.named)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if ok != (want != "") || ok && !same(r, want) {
				t.Errorf("got %q %v, want %q", r, ok, want)
			}
		})
	}
}

// same compares requests; the order of devices doesn't matter.
func same(r request.Request, text string) bool {
	want, err := request.Parse(text)
	if err != nil || want.IDs() == nil {
		return err == nil && r == want
	}
	a, b := r.IDs(), want.IDs()
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// TestCDIIndices: NVIDIA's CDI names in berth's own specs are a count only if the policy says so.
func TestCDIIndices(t *testing.T) {
	menu := func(words ...string) *specs.Spec {
		s := spec()
		for _, w := range words {
			flag := "--nvidia"
			if strings.HasPrefix(w, "!") {
				flag, w = "--request", w[1:]
			}
			s.Hooks.CreateRuntime = append(s.Hooks.CreateRuntime, hook("/berth-hook", "createRuntime", flag, w))
		}
		return s
	}
	for _, tt := range []struct {
		name         string
		spec         *specs.Spec
		exact, count string
	}{
		{"0", menu("device=0"), "device=0", "1"},
		{"0 and 1", menu("device=0", "device=1"), "device=0,1", "2"},
		{"1 and 0, twice", menu("device=1", "device=0", "device=1"), "device=0,1", "2"},
		{"1", menu("device=1"), "device=1", "device=1"},
		{"0 and 2", menu("device=0", "device=2"), "device=0,2", "device=0,2"},
		{"0 and a slice", menu("device=0", "!1:0"), "device=0,1:0", "device=0,1:0"},
		{"berth's own name of the same", menu("!device=0"), "device=0", "device=0"},
		{"0 and one by UUID", menu("device=0", "!GPU-1"), "device=0,GPU-1", "device=0,GPU-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for trust, want := range map[Trust]string{{}: tt.exact, {CountIndices: true}: tt.count} {
				r, _, err := FindRequest(tt.spec, RequestSet{}, trust, nil)
				if err != nil || !same(r, want) {
					t.Errorf("%+v: %q, %v, want %q", trust, r, err, want)
				}
			}
		})
	}
}

// TestRemoveNVIDIA: NVIDIA's hooks and the driver files of their CDI specs are removed, and nothing
// else.
func TestRemoveNVIDIA(t *testing.T) {
	theirs := func(file string) specs.Mount {
		return specs.Mount{Destination: file, Source: file, Type: "bind", Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}}
	}
	s := ofCDI(3)
	s.Hooks.Prestart = []specs.Hook{dockersHook(), {Path: "/proc/7/exe", Args: []string{"libnetwork-setkey"}}} //nolint:staticcheck // Docker still writes it.
	own := []specs.Mount{
		{Destination: "/data/nvidia-models.d", Source: "/data/nvidia-models.d", Type: "bind", Options: []string{"ro", "nosuid", "nodev", "rbind"}},
		{Destination: "/usr/bin/nvidia-smi", Source: "/home/u/nvidia-smi", Type: "bind", Options: []string{"ro", "nosuid", "nodev", "rbind"}},
		{Destination: "/usr/lib/libcuda.so.570.1", Source: "/usr/lib/libcuda.so.570.1", Type: "bind", Options: []string{"rbind", "ro"}},
		{Destination: "/usr/lib/libfoo.so.1.2", Source: "/usr/lib/libfoo.so.1.2", Type: "bind", Options: []string{"ro", "nosuid", "nodev", "rbind"}},
		{Destination: "/etc/nvidia-container-runtime", Source: "/etc/nvidia-container-runtime", Type: "bind", Options: []string{"ro", "nosuid", "nodev", "rbind"}},
		{Destination: "/etc/nvidia.d", Source: "tmpfs", Type: "tmpfs", Options: []string{"ro", "nosuid", "nodev"}},
	}
	s.Mounts = slices.Concat(own[:2], []specs.Mount{
		theirs("/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.15"), theirs("/usr/lib/vdpau/libvdpau_nvidia.so.570.86"), theirs("/usr/bin/nvidia-smi"),
		theirs("/run/nvidia-persistenced/socket"), theirs("/lib/firmware/nvidia/570.86.15/gsp_ga10x.bin"), theirs("/etc/vulkan/icd.d/nvidia_icd.json"),
		{Destination: "/usr/lib/libnvidia-ml.so.570.86.15", Source: "/run/nvidia/driver/usr/lib/libnvidia-ml.so.570.86.15", Options: []string{"ro", "nosuid", "nodev", "bind"}},
	}, own[2:])
	all := slices.Clone(s.Mounts)
	plain := &specs.Spec{Mounts: all, Hooks: &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/other"}}}, Process: &specs.Process{Env: []string{"NVIDIA_CTK_X=1"}}}

	flag := withFlag()
	flag.Mounts = all
	if StripSpec(flag); len(flag.Mounts) != len(all) {
		t.Errorf("beside --gpus the user's mounts went: %v", flag.Mounts)
	}
	if !HasNVIDIAHooks(s) || HasNVIDIAHooks(plain) || HasNVIDIAHooks(&specs.Spec{}) {
		t.Error("Foreign is wrong")
	}
	notes := StripSpec(s)
	wantNotes := []string{
		"2 hooks of /usr/bin/nvidia-cdi-hook, which berth replaces",
		"1 hook of /var/lib/berth/engines/docker/nvidia-container-runtime-hook, which berth replaces",
		"7 mounts of driver files by NVIDIA's CDI spec",
	}
	want := &specs.Spec{
		Mounts: own, Process: &specs.Process{Env: []string{"NVIDIA_VISIBLE_DEVICES=void", "A=b"}},
		Hooks: &specs.Hooks{
			Prestart: []specs.Hook{{Path: "/proc/7/exe", Args: []string{"libnetwork-setkey"}}}, CreateContainer: []specs.Hook{{Path: "/bin/other"}}, //nolint:staticcheck // the same
			CreateRuntime: s.Hooks.CreateRuntime, StartContainer: s.Hooks.StartContainer, Poststart: s.Hooks.Poststart, Poststop: s.Hooks.Poststop,
		},
		Linux: ofCDI(3).Linux,
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantNotes, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if HasNVIDIAHooks(s) || StripSpec(s) != nil {
		t.Error("twice isn't the same as once")
	}
	if notes := StripSpec(plain); notes != nil || len(plain.Mounts) != len(all) || len(plain.Process.Env) != 1 {
		t.Errorf("without a hook of theirs something went: %v", notes)
	}
}

// TestVisibleDevices: the meanings of NVIDIA_VISIBLE_DEVICES in a container without another request.
func TestVisibleDevices(t *testing.T) {
	policies := []Visible{"", Ignore, Count, Honour, Refuse}
	const refused = "!asks for no GPU here"
	for _, tt := range []struct {
		name string
		env  []string
		want [5]string // by policy; "!" begins an error
	}{
		{"not set", []string{"A=b"}, [5]string{}},
		{"void", []string{"NVIDIA_VISIBLE_DEVICES=void"}, [5]string{}},
		{"none", []string{"NVIDIA_VISIBLE_DEVICES=none"}, [5]string{}},
		{"empty", []string{"NVIDIA_VISIBLE_DEVICES="}, [5]string{}},
		{"all", []string{"NVIDIA_VISIBLE_DEVICES=all"}, [5]string{"", "", "1", "all", refused + ": --gpus N"}},
		{"the last counts", []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"}, [5]string{}},
		{"a number is an index", []string{"NVIDIA_VISIBLE_DEVICES=2"}, [5]string{"", "", "1", "device=2", refused}},
		{"a list", []string{"NVIDIA_VISIBLE_DEVICES=0,3"}, [5]string{"", "", "2", "device=0,3", refused}},
		{"doubles", []string{"NVIDIA_VISIBLE_DEVICES=0, 0,,0"}, [5]string{"", "", "1", "!", refused}},
		{"a list of all", []string{"NVIDIA_VISIBLE_DEVICES=all,all"}, [5]string{"", "", "1", "!", refused}},
		{"UUIDs", []string{"NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2"}, [5]string{"", "", "2", "device=GPU-1,GPU-2", refused}},
		{"nonsense", []string{"NVIDIA_VISIBLE_DEVICES=\x00;rm"}, [5]string{"", "", "1", "!has a character", refused}},
		{"newlines", []string{"NVIDIA_VISIBLE_DEVICES=\nall\n\n"}, [5]string{"", "", "1", "!has a character", refused}},
		{"very many", []string{"NVIDIA_VISIBLE_DEVICES=" + counting(10000)}, [5]string{"", "", "!no node has so many", "!longer than", refused}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i, policy := range policies {
				want, isError := strings.CutPrefix(tt.want[i], "!")
				spec := &specs.Spec{Process: &specs.Process{Env: tt.env}}
				r, ok, err := FindRequest(spec, RequestSet{}, Trust{VisibleDevices: policy}, nil)
				if (err != nil) != isError || isError && !strings.Contains(err.Error(), want) {
					t.Errorf("%s: error %v, want %q", policy, err, tt.want[i])
					continue
				}
				if err != nil && (strings.Contains(err.Error(), "\n") || len(err.Error()) > 500) {
					t.Errorf("%s: not one short line: %q", policy, err)
				}
				if ok != (want != "" && !isError) || ok && !same(r, want) {
					t.Errorf("%s: %q, want %q", policy, r, want)
				}
			}
		})
	}
	all := []string{"NVIDIA_VISIBLE_DEVICES=all"}
	for _, policy := range policies {
		for name, tt := range map[string]struct {
			spec *specs.Spec
			want string
		}{
			"beside the annotation": {&specs.Spec{Process: &specs.Process{Env: all}, Annotations: map[string]string{Annotation: "2"}}, "2"},
			"beside --gpus":         {withFlag("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0"), "1"},
			"--gpus 0":              {withFlag("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"), ""},
			"a pod's sandbox":       {&specs.Spec{Process: &specs.Process{Env: all}, Annotations: map[string]string{"io.kubernetes.cri.container-type": "sandbox"}}, ""},
		} {
			t.Run(fmt.Sprintf("%s, %s", name, policy), func(t *testing.T) { asks(t, tt.spec, Trust{VisibleDevices: policy}, nil, tt.want, "") })
		}
	}
}

// TestEnvironmentIsNoRequest: with the default policy no environment of an image or a user is a
// request, and --gpus 1 is one GPU.
func TestEnvironmentIsNoRequest(t *testing.T) {
	names := []string{VisibleDevices, Variable, "NVIDIA_DRIVER_CAPABILITIES", "PATH", "A"}
	rapid.Check(t, func(t *rapid.T) {
		var env []string
		for range rapid.IntRange(0, 20).Draw(t, "entries") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			value := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"all", "0,1", "void", "GPU-1", "\nall"})).Draw(t, "value")
			env = append(env, rapid.SampledFrom([]string{name + "=" + value, name, value}).Draw(t, "entry"))
		}
		if r, ok, err := FindRequest(&specs.Spec{Process: &specs.Process{Env: env}}, RequestSet{}, Trust{}, nil); ok || err != nil {
			t.Fatalf("%q asks for %q, %v", env, r, err)
		}
		r, ok, err := FindRequest(withFlag(append(env, "NVIDIA_VISIBLE_DEVICES=0")...), RequestSet{}, Trust{}, nil)
		if !ok || err != nil || r.String() != "1" {
			t.Fatalf("%q beside --gpus 1 asks for %q, %v", env, r, err)
		}
	})
}

// FuzzVisible: whatever the variable says, an error is one short line, "count" asks for
// a count, and what only Docker's hook may ask for is asked for by nothing else.
func FuzzVisible(f *testing.F) {
	for _, seed := range []string{"all", "0,1", "void", "", "GPU-1,GPU-2", "\n0", strings.Repeat("0,", 50), "h100:2", "2,+gds", `"0"`} {
		f.Add(seed, "NVIDIA_VISIBLE_DEVICES=all\nA=b")
	}
	f.Fuzz(func(t *testing.T, value, more string) {
		env := append(strings.Split(more, "\n"), VisibleDevices+"="+value)
		for _, policy := range []Visible{"", Ignore, Count, Honour, Refuse} {
			r, ok, err := FindRequest(&specs.Spec{Process: &specs.Process{Env: env}}, RequestSet{}, Trust{VisibleDevices: policy}, nil)
			switch {
			case err != nil && (strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 1000):
				t.Errorf("%s: not one short line: %q", policy, err)
			case (policy == "" || policy == Ignore) && (ok || err != nil), policy == Refuse && ok:
				t.Errorf("%s: asks for %q, %v", policy, r, err)
			case policy == Count && ok && (r.IsAll() || r.IDs() != nil || r.Model() != "" || r.CDI() != nil || r.Features() != nil):
				t.Errorf("count asks for %q", r)
			}
		}
		if _, _, err := FindRequest(withFlag(env...), RequestSet{}, Trust{}, nil); err != nil && (strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 1000) {
			t.Errorf("--gpus: not one short line: %q", err)
		}
	})
}
