package requirement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/gpu"
)

func requiringNode() gpu.Inventory {
	return gpu.Inventory{
		Driver: gpu.Driver{Version: "550.163.01", CUDA: "12.4"},
		GPUs: []gpu.GPU{
			{UUID: "GPU-a", Index: 0, Model: "NVIDIA H100 80GB HBM3", ComputeCapability: "9.0"},
			{UUID: "GPU-b", Index: 1, Model: "Tesla V100-SXM2-16GB", ComputeCapability: "7.0", MIG: true, Slices: []gpu.Slice{{UUID: "MIG-b", Index: 2}}},
		},
	}
}

func TestCheck(t *testing.T) {
	inv := requiringNode()
	h100, slice := inv.GPUs[0].Device(), inv.GPUs[1].SliceDevice(inv.GPUs[1].Slices[0])
	official := "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=unknown,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536 brand=nvidia,driver>=550,driver<551"
	tests := []struct {
		name   string
		env    []string
		leased []gpu.Device
		says   string // "" if it holds
	}{
		{name: "nothing", leased: []gpu.Device{h100}},
		{name: "nothing asked", env: []string{"PATH=/bin", "NVIDIA_REQUIRE_=", "NVIDIA_REQUIRE_CUDA= , ,"}, leased: []gpu.Device{h100}},
		{name: "met", env: []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.4"}, leased: []gpu.Device{h100}},
		{name: "newer asked", env: []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.8"}, leased: []gpu.Device{h100}, says: `image asks for "NVIDIA_REQUIRE_CUDA=cuda>=12.8"; there is cuda 12.4, driver 550.163.01 and GPU 0 with arch 9.0, brand nvidia`},
		{name: "by number, not by text", env: []string{"NVIDIA_REQUIRE_X=cuda>=9.10"}, leased: []gpu.Device{h100}},
		{name: "a missing number is 0", env: []string{"NVIDIA_REQUIRE_X=arch=9,driver>550,driver<551"}, leased: []gpu.Device{h100}},
		{name: "leading zeros", env: []string{"NVIDIA_REQUIRE_X=driver=550.163.1"}, leased: []gpu.Device{h100}},
		{name: "or", env: []string{official}, leased: []gpu.Device{h100}},
		{name: "neither", env: []string{official}, leased: []gpu.Device{slice}, says: "GPU 1 with arch 7.0, brand tesla"},
		{name: "one of two devices", env: []string{"NVIDIA_REQUIRE_ARCH=arch>=8"}, leased: []gpu.Device{h100, slice}, says: "GPU 1 with arch 7.0"},
		{name: "each variable", env: []string{"NVIDIA_REQUIRE_A=cuda>=12", "NVIDIA_REQUIRE_B=driver>=560"}, leased: []gpu.Device{h100}, says: `"NVIDIA_REQUIRE_B=driver>=560"`},
		{name: "and", env: []string{"NVIDIA_REQUIRE_A=cuda>=12,driver>=560"}, leased: []gpu.Device{h100}, says: "image asks for"},
		{name: "brand", env: []string{"NVIDIA_REQUIRE_A=brand=Tesla,brand!=nvidia"}, leased: []gpu.Device{slice}},
		{name: "not that brand", env: []string{"NVIDIA_REQUIRE_A=brand!=tesla"}, leased: []gpu.Device{slice}, says: "brand tesla"},
		{name: "off", env: []string{"NVIDIA_REQUIRE_A=cuda>=99", "NVIDIA_DISABLE_REQUIRE=true"}, leased: []gpu.Device{h100}},
		{name: "off by 1, and unread", env: []string{"NVIDIA_DISABLE_REQUIRE=1", "NVIDIA_REQUIRE_A=?"}, leased: []gpu.Device{h100}},
		{name: "not off", env: []string{"NVIDIA_DISABLE_REQUIRE=false", "NVIDIA_REQUIRE_A=cuda>=99"}, leased: []gpu.Device{h100}, says: "image asks for"},
		{name: "not off by an unknown value", env: []string{"NVIDIA_DISABLE_REQUIRE=please", "NVIDIA_REQUIRE_A=cuda>=99"}, leased: []gpu.Device{h100}, says: "image asks for"},
		{name: "the last counts", env: []string{"NVIDIA_REQUIRE_A=cuda>=99", "NVIDIA_REQUIRE_A=cuda>=1"}, leased: []gpu.Device{h100}},
		{name: "other machines", env: []string{"NVIDIA_REQUIRE_JETPACK=csv-mounts=all"}, leased: []gpu.Device{h100}},
		{name: "no device", env: []string{"NVIDIA_REQUIRE_A=driver>=550"}},
		{name: "no device, but asked about", env: []string{"NVIDIA_REQUIRE_A=arch>=1"}, says: "there is cuda 12.4, driver 550.163.01"},
		{name: "gone since", env: []string{"NVIDIA_REQUIRE_A=brand=titan"}, leased: []gpu.Device{{UUID: "GPU-z", Index: "7", Model: "TITAN V"}}},
		{name: "gone since, arch unknown", env: []string{"NVIDIA_REQUIRE_A=arch!=1"}, leased: []gpu.Device{{UUID: "GPU-z", Index: "7"}}, says: "GPU 7 with arch unknown, brand unknown"},
		{name: "a long one is cut", env: []string{"NVIDIA_REQUIRE_A=" + strings.Repeat("cuda>=99 ", 999)}, leased: []gpu.Device{h100}, says: `…"; there is cuda`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Check(tt.env, inv, tt.leased)
			if tt.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrUnmet) || !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 400 {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
}

func TestCheckUnknownDriver(t *testing.T) {
	for _, op := range []string{"=", "!=", "<", "<=", ">", ">="} {
		err := Check([]string{"NVIDIA_REQUIRE_CUDA=cuda" + op + "12"}, gpu.Inventory{}, nil)
		if !errors.Is(err, ErrUnmet) || !strings.Contains(err.Error(), "cuda unknown, driver unknown") {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func TestCheckMalformed(t *testing.T) {
	tests := []struct{ value, says string }{
		{"cuda", `"cuda" isn't a constraint`},
		{"cuda >= 12", `"cuda" isn't a constraint`},
		{"cuda>=12 x", `"x" isn't a constraint`},
		{"cuda=>12", `"cuda=>12": unknown comparison "=>"`},
		{"cuda==12", `unknown comparison "=="`},
		{"cuda!12", `unknown comparison "!"`},
		{"cuda>=", `"" isn't a version`},
		{"cuda>=x", `"x" isn't a version`},
		{"cuda>=-1", `"-1" isn't a version`},
		{"cuda>=12.", `"12." isn't a version`},
		{"cuda>=12.4rc", `"12.4rc" isn't a version`},
		{"cuda>=1.2.3.4.5.6.7.8.9", "isn't a version"},
		{"cuda>=99999999999999999999", "isn't a version"},
		{">=12", `unknown key ""; known: cuda, driver, arch, brand`},
		{"os=linux", `"os=linux": unknown key "os"`},
		{"CUDA>=12", `unknown key "CUDA"`},
		{"brand>=tesla", "a brand is compared by = or !="},
		{"brand=", `"" isn't a brand`},
		{"brand=te\x00sla", "isn't a brand"},
	}
	for _, tt := range tests {
		t.Run(tt.value, func(t *testing.T) {
			// A constraint that can't be parsed is refused, even where another one is met.
			err := Check([]string{"NVIDIA_REQUIRE_CUDA=cuda>=1 " + tt.value}, requiringNode(), nil)
			if !errors.Is(err, ErrUnmet) || !strings.HasPrefix(err.Error(), `"NVIDIA_REQUIRE_CUDA": `) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
}

func TestBrands(t *testing.T) {
	tests := map[string]string{
		"NVIDIA H100 80GB HBM3": "nvidia", "NVIDIA A100-SXM4-80GB": "nvidia", "NVIDIA L40S": "nvidia",
		"Tesla T4": "tesla", "Tesla V100-SXM2-16GB": "tesla", "NVIDIA GeForce RTX 4090": "geforce geforcertx",
		"GeForce GTX 1080 Ti": "geforce", "Quadro RTX 6000": "quadro quadrortx", "Quadro P2000": "quadro",
		"TITAN RTX": "titan titanrtx", "NVIDIA TITAN V": "titan", "NVIDIA RTX A6000": "nvidia nvidiartx",
		"NVIDIA RTX 6000 Ada Generation": "nvidia nvidiartx", "GRID T4-16Q": "grid", "": "unknown", "Radeon": "unknown",
	}
	for model, want := range tests {
		if got := strings.Join(brandNames(model), " "); got != want {
			t.Errorf("%q: %s, want %s", model, got, want)
		}
	}
}

func TestVersionOrder(t *testing.T) {
	sorted := []string{"", "9", "9.9", "9.10", "12", "12.4", "535.54.03", "550.54.15", "550.163.01"}[1:]
	genVersion := rapid.SampledFrom(sorted)
	rapid.Check(t, func(t *rapid.T) {
		a, b := genVersion.Draw(t, "a"), genVersion.Draw(t, "b")
		v, okV := parseVersion(a + rapid.SampledFrom([]string{"", ".0", ".0.00"}).Draw(t, "zeros"))
		w, okW := parseVersion(b)
		if want := cmp.Diff(slices.Index(sorted, a) < slices.Index(sorted, b), v.compareTo(w) < 0); !okV || !okW || want != "" {
			t.Fatalf("%v, %v: %s", v, w, want)
		}
		if v.compareTo(w) != -w.compareTo(v) || (v.compareTo(w) == 0) != (a == b) {
			t.Fatalf("%v, %v: no order", v, w)
		}
	})
}

// Of <, = and > exactly one holds; the other comparisons follow from these.
func TestConstraintIsTrichotomous(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"cuda", "driver", "arch"}).Draw(t, "key")
		value := rapid.StringMatching(`[0-9]{1,3}(\.[0-9]{1,3}){0,2}`).Draw(t, "value")
		inv := requiringNode()
		holds := func(op string) bool {
			return Check([]string{"NVIDIA_REQUIRE_X=" + key + op + value}, inv, []gpu.Device{inv.GPUs[0].Device()}) == nil
		}
		less, equal, more := holds("<"), holds("="), holds(">")
		if less == equal && equal == more || less && more || less && equal || equal && more {
			t.Fatalf("%v %v %v", less, equal, more)
		}
		if holds("<=") != (less || equal) || holds(">=") != (more || equal) || holds("!=") == equal {
			t.Fatal("<=, >= and != don't follow")
		}
	})
}

func FuzzCheck(f *testing.F) {
	for _, s := range []string{"cuda>=12.4 brand=tesla,driver>=535", "arch!=9.0", ",, ,", "cuda>>1", "brand=\xff", ">=<!"} {
		f.Add("NVIDIA_REQUIRE_CUDA", s)
	}
	f.Add("NVIDIA_DISABLE_REQUIRE", "true")
	inv := requiringNode()
	leased := inv.Devices()
	f.Fuzz(func(t *testing.T, name, value string) {
		env := []string{name + "=" + value}
		err := Check(env, inv, leased)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrUnmet) || len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Fatalf("error %q", err)
		}
		if Check(append(env, "NVIDIA_DISABLE_REQUIRE=1"), inv, leased) != nil {
			t.Fatal("refused though turned off")
		}
	})
}

// The image chooses the environment: the largest possible one is parsed in linear time.
func TestManyRequirements(t *testing.T) {
	var env []string
	for i := range 400_000 {
		env = append(env, fmt.Sprintf("NVIDIA_REQUIRE_%d=cuda>=1", i))
	}
	all, err := parseRequirements(append(env, env[0]+"0"))
	if err != nil || len(all) != len(env) || all[len(all)-1].value != "cuda>=10" {
		t.Errorf("%d requirements, %v", len(all), err)
	}
}
