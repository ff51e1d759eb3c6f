package gpu

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseDevices(t *testing.T) {
	tests := []struct {
		name, text string
		want       []Major
		wantErr    string
	}{
		{name: "empty"},
		{
			name: "shared numbers and spaces",
			text: "Character devices:\n  1 mem\n  4 /dev/vc/0\n195 nvidia\n195 nvidiactl\n509 nvidia uvm\n\nBlock devices:\n  8 sd\n",
			want: []Major{{1, "mem"}, {4, "/dev/vc/0"}, {195, "nvidia"}, {195, "nvidiactl"}, {509, "nvidia uvm"}},
		},
		{name: "block devices alone", text: "Block devices:\n259 blkext\n"},
		{name: "no number", text: "Character devices:\nnvidia\n", wantErr: `parse line "nvidia"`},
		{name: "no name", text: "Character devices:\n195\n", wantErr: `parse line "195"`},
		{name: "number too large", text: "Character devices:\n4294967296 nvidia\n", wantErr: "want a number and a name"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseDevices(tt.text)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestIsAcceleratorMajor(t *testing.T) {
	tests := map[string]bool{
		"nvidia": true, "nvidia-frontend": true, "nvidiactl": true, "nvidia-modeset": true,
		"nvidia-uvm": true, "nvidia-caps": true, "nvidia-caps-imex-channels": true,
		"nvidia-nvswitch": true, "nvidia-nvlink": true, "nvidia-vgpu-vfio": true, "nvidia-fs": true,
		"nvidia-of-tomorrow": true, "gdrdrv": true, "kfd": true, "drm": true, "accel": true,
		"infiniband_verbs": true, "infiniband_mad": true, "infiniband_cm": true,
		"mem": false, "misc": false, "tty": false, "pts": false, "/dev/tty": false, "rtc": false,
		"input": false, "vfio": false, "": false, "drm2": false, "my-nvidia": false,
	}
	for name, want := range tests {
		if got := IsAcceleratorMajor(name); got != want {
			t.Errorf("IsAcceleratorMajor(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestAcceleratorMajors(t *testing.T) {
	got := AcceleratorMajors([]Major{{1, "mem"}, {195, "nvidia"}, {509, "nvidia-uvm"}, {234, "kfd"}})
	want := map[int64]bool{195: true, 226: true, 231: true, 261: true, 509: true, 234: true}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func FuzzParseDevices(f *testing.F) {
	f.Add("Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n  8 sd\n")
	f.Add("Character devices:\n195  \n")
	f.Fuzz(func(t *testing.T, text string) {
		majors, err := ParseDevices(text)
		if err != nil && majors != nil {
			t.Errorf("majors %v beside error %v", majors, err)
		}
		for _, m := range majors {
			if m.Name == "" || strings.ContainsAny(m.Name, "\n") {
				t.Errorf("name %q", m.Name)
			}
		}
	})
}
