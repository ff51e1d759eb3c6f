package nvidiacli

import (
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/gpu"
)

// parse runs a command line of NVIDIA's program. check gets what a subcommand has parsed.
func parse(words string, check cli.ActionFunc) error {
	top := Command()
	for _, sub := range top.Subcommands {
		sub.Action = check
	}
	app := &cli.App{Name: "berth", Commands: []*cli.Command{top}, DisableSliceFlagSeparator: true, ExitErrHandler: func(*cli.Context, error) {}}
	return app.Run(AddVerb(append([]string{"/usr/bin/nvidia-container-cli"}, strings.Fields(words)...)))
}

// TestCalls: the command lines of launchers. The first two are those of Apptainer 1.4 in a user namespace and as root, then those of enroot's
// hook 98-nvidia.sh and of NVIDIA's hook, which Sarus calls.
func TestCalls(t *testing.T) {
	for _, tt := range []struct{ words, devices, env string }{
		{
			"--user configure --no-cgroups --device=all --compute --utility --ldconfig=@/sbin/ldconfig /var/lib/apptainer/mnt/session/final",
			"all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
		},
		{
			"configure --no-cgroups --graphics --device=1,GPU-c41f --require=cuda>=12.0,driver>=535 --ldconfig=@/sbin/ldconfig.real /root/final",
			"device=1,GPU-c41f", "NVIDIA_DRIVER_CAPABILITIES=graphics NVIDIA_REQUIRE_0=cuda>=12.0,driver>=535",
		},
		{
			"--user --debug=/dev/stderr configure --no-cgroups --ldconfig=@/usr/sbin/ldconfig --device=MIG-1 --compute --compat32 --display --graphics --utility --video /home/a/image",
			"device=MIG-1", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video,graphics,display,compat32",
		},
		{
			"--load-kmods -d /var/log/toolkit.log configure --ldconfig=@/sbin/ldconfig --cuda-compat-mode=ldconfig --device=GPU-a --device GPU-b --require=brand=tesla --require=cuda>=11 --pid=4711 /root/fs",
			"device=GPU-a,GPU-b", "NVIDIA_DRIVER_CAPABILITIES= NVIDIA_REQUIRE_0=brand=tesla NVIDIA_REQUIRE_1=cuda>=11",
		},
		{"--user=1000:1000 -k configure -l @/sbin/ldconfig -d 0 -r arch>=8.0 /fs", "device=0", "NVIDIA_DRIVER_CAPABILITIES= NVIDIA_REQUIRE_0=arch>=8.0"},
	} {
		called := false
		err := parse(tt.words, func(c *cli.Context) error {
			called = true
			fields := strings.Fields(tt.words)
			if root, err := checkRoot(c); err != nil || root != fields[len(fields)-1] {
				t.Errorf("%s: root %q, %v", tt.words, root, err)
			}
			if r, err := parseDevices(c.StringSlice("device")); err != nil || r.String() != tt.devices && "device="+r.String() != tt.devices {
				t.Errorf("%s: devices %q, %v", tt.words, r, err)
			}
			if env := strings.Join(driverVariables(c), " "); env != tt.env {
				t.Errorf("%s: variables %q", tt.words, env)
			}
			return nil
		})
		if err != nil || !called {
			t.Errorf("%s: %v", tt.words, err)
		}
	}
}

func TestWrongCalls(t *testing.T) {
	for words, want := range map[string]string{
		"":                               "takes info, list or configure",
		"configure":                      "takes the container's root directory",
		"configure /a /b":                "takes the container's root directory",
		"configure image":                `"image" is not the root directory of a container`,
		"configure //":                   `"//" is not the root directory of a container`,
		"configure --device=0:x /fs":     "--device: ",
		"configure --device=,+gds /fs":   "--device: ",
		"configure --mig-config=all /fs": "there is no flag --mig-config",
		"mount":                          "takes info, list or configure",
	} {
		err := parse(words, func(c *cli.Context) error {
			if _, err := checkRoot(c); err != nil {
				return err
			}
			_, err := parseDevices(c.StringSlice("device"))
			return err
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", words, err, want)
		}
	}
}

func TestListedKinds(t *testing.T) {
	for words, want := range map[string][]string{
		"list":                               {"device", "program", "library", "socket"},
		"--user list --device=all":           {"device"},
		"list --binaries --ipcs --libraries": {"program", "library", "socket"},
		"list -l --compat32":                 {"library"},
	} {
		if err := parse(words, func(c *cli.Context) error {
			if got := wantedKinds(c); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", words, got, want)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

func TestOtherNames(t *testing.T) {
	if got := AddVerb([]string{"berth", "configure"}); !slices.Equal(got, []string{"berth", "configure"}) {
		t.Errorf("%v", got)
	}
}

func TestPrintInfo(t *testing.T) {
	driver := gpu.Driver{Version: "550.163.01", CUDA: "12.4"}
	one := []gpu.GPU{{UUID: "GPU-8f4a", Index: 3, Minor: 5, PCI: "0000:1b:00.0", Model: "NVIDIA H100 80GB HBM3", ComputeCapability: "9.0"}}
	for _, tt := range []struct {
		csv  bool
		want string
	}{
		{true, "NVRM version,CUDA version\n550.163.01,12.4\n\nDevice Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture\n" +
			"3,5,NVIDIA H100 80GB HBM3,nvidia,GPU-8f4a,0000:1b:00.0,9.0\n"},
		{false, "NVRM version:   550.163.01\nCUDA version:   12.4\n\nDevice Index:   3\nDevice Minor:   5\nModel:          NVIDIA H100 80GB HBM3\n" +
			"Brand:          nvidia\nGPU UUID:       GPU-8f4a\nBus Location:   0000:1b:00.0\nArchitecture:   9.0\n"},
	} {
		var out strings.Builder
		if err := printInfo(&out, driver, one, tt.csv); err != nil || out.String() != tt.want {
			t.Errorf("%v: %q, want %q", err, out.String(), tt.want)
		}
	}
}
