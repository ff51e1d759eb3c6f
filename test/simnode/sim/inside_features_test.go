package sim

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// testFeatures checks the devices that go with GPUs: nodes of features, links of graphics nodes,
// and the sockets of the driver's services.
func testFeatures(t *testing.T, n Node, p Profile) {
	for pattern, want := range map[string]int{
		"nvidia-fs*": p.Files, "nvidia-caps-imex-channels/channel*": p.Channels, "gdrdrv": bit(p.GDRCopy),
		"nvidia-nvswitch[0-9]*": len(p.Switches), "nvidia-nvswitchctl": bit(len(p.Switches) > 0),
		"dri/by-path/*-card": len(p.GPUs), "dri/by-path/*-render": len(p.GPUs),
	} {
		if got, err := filepath.Glob("/dev/" + pattern); len(got) != want || err != nil {
			t.Errorf("%s: %v (%v), want %d", pattern, got, err, want)
		}
	}
	for i, g := range p.GPUs {
		for link, want := range map[string]string{
			"card": fmt.Sprintf("/dev/dri/card%d", i), "render": fmt.Sprintf("/dev/dri/renderD%d", 128+i),
		} {
			if got := resolve(t, "/dev/dri/by-path/pci-"+PCI(g.Path)+"-"+link); got != want {
				t.Errorf("%s of %s is %s, want %s", link, PCI(g.Path), got, want)
			}
		}
		drm, err := filepath.Glob("/sys/bus/pci/devices/" + PCI(g.Path) + "/drm/*")
		if len(drm) != 2 || err != nil {
			t.Errorf("graphics nodes of %s: %v, %v", PCI(g.Path), drm, err)
		}
	}
	for _, path := range p.sockets() {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s answers: %v", path, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if got, err := filepath.Glob("/run/nvidia*/*"); len(got) != len(p.sockets()) || err != nil {
		t.Errorf("sockets %v (%v), want %v", got, err, p.sockets())
	}
}

// testData checks the driver's files other than its libraries of 64 bits.
func testData(t *testing.T, n Node) {
	for _, path := range []string{
		"/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/vulkan/icd.d/nvidia_icd.json",
		"/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
	} {
		b, err := os.ReadFile(path)
		var icd struct {
			ICD struct {
				Library string `json:"library_path"`
			}
		}
		if err := errors.Join(err, json.Unmarshal(b, &icd)); err != nil {
			t.Fatalf("%s: %v\n%s", path, err, b)
		}
		if _, err := os.Stat(filepath.Join(n.Libraries, icd.ICD.Library)); err != nil && !n.NVIDIA {
			t.Errorf("%s: %v", path, err)
		}
	}
	read(t, "/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1")
	for _, chips := range []string{"ga10x", "tu10x"} {
		read(t, "/lib/firmware/nvidia/"+n.Driver+"/gsp_"+chips+".bin", "simulated firmware "+n.Driver+" of "+chips)
	}
	if n.Libraries32 != libraryDir32() {
		t.Errorf("32-bit libraries are in %q", n.Libraries32)
	}
	for _, l := range libraries32() {
		if n.Libraries32 == "" {
			break
		}
		path := filepath.Join(n.Libraries32, l.name+".so."+n.Driver)
		want := l.soname
		if want == "" {
			want = filepath.Base(path)
		}
		class, soname := identify(t, path)
		if class != elf.ELFCLASS32 || soname != want {
			t.Errorf("%s is %v, %q, want %q", path, class, soname, want)
		}
		if to := resolve(t, filepath.Dir(path), want); to != path {
			t.Errorf("%s leads to %s", want, to)
		}
	}
	if left, err := filepath.Glob("/usr/lib/*"); len(left) < 3 || err != nil {
		t.Errorf("the machine's own /usr/lib is hidden: %v, %v", left, err)
	}
}

func identify(t *testing.T, path string) (elf.Class, string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	sonames, err := f.DynString(elf.DT_SONAME)
	if err := errors.Join(err, f.Close()); err != nil || len(sonames) != 1 {
		t.Errorf("%s: sonames %v, %v", path, sonames, err)
		return f.Class, ""
	}
	return f.Class, sonames[0]
}

func testProc(t *testing.T, n Node, p Profile) {
	const dir = "/proc/driver/nvidia/"
	for name, want := range map[string]string{
		"params": "\nModifyDeviceFiles: 1\n", "version": "  " + n.Driver + "  ", "registry": "Binary: ",
		"capabilities/mig/config": "DeviceFileMinor: 1\n",
	} {
		if b, err := os.ReadFile(dir + name); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v, %q, want %q", name, err, b, want)
		}
	}
	for _, g := range p.GPUs {
		entries, err := os.ReadDir(dir + "gpus/" + PCI(g.Path))
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if diff := cmp.Diff([]string{"information", "power", "registry"}, names); diff != "" || err != nil {
			t.Errorf("%s: %v %s", PCI(g.Path), err, diff)
		}
	}
}

// The services listen as long as the node's first process lives, and no longer.
func TestServicesEnd(t *testing.T) {
	testutil.NeedRoot(t, "cc")
	cmd, _ := start(t, "dgx-h100")
	// A path of the node that outlives it.
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/root/run/nvidia-fabricmanager/socket", cmd.Process.Pid), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	connect := func() error {
		c, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil {
			err = c.Close()
		}
		return err
	}
	if err := connect(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The test's own time limit ends a wait that never succeeds.
	for err == nil || errors.Is(err, unix.EAGAIN) { // the queue is full while no connection is accepted
		time.Sleep(time.Millisecond)
		err = connect()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
}
