package run

import "testing"

func TestResolveBeside(t *testing.T) {
	for path, want := range map[string]string{
		"./frames:/in": "/jobs/frames:/in", "../frames:/in": "/frames:/in", "./image": "/jobs/image",
		"frames:/in": "frames:/in", "/frames:/in": "/frames:/in", "vision:2": "vision:2", ".hidden": ".hidden", "": "",
	} {
		if got := resolveBeside("/jobs", path); got != want {
			t.Errorf("beside(%q) is %q, want %q", path, got, want)
		}
	}
}
