// Package layout checks which packages import which.
package layout

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/berth-gpu/berth"

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// floor is the level of a package; it may import only lower packages, and those of its own folder.
// The order is that of ARCHITECTURE.md.
func floor(path string) int {
	floors := [][]string{
		{"internal"},
		{"gpu", "cdi/edits", "cdi/ldcache"},
		{"isolation/cgroup"},
		{"cdi", "isolation"},
		{"guard"},
		{""},
		{"hook", "launcher", "broker"},
		{"cmd"},
	}
	rel := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
	best, level := -1, 0
	for i, names := range floors {
		for _, n := range names {
			if (rel == n || strings.HasPrefix(rel, n+"/") && n != "") && len(n) > best {
				best, level = len(n), i
			}
		}
	}
	return level
}

// folder is the first part of a package's path below the module.
func folder(path string) string {
	top, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"), "/")
	return top
}

func TestImportsGoOneWay(t *testing.T) {
	for _, p := range packages(t) {
		if folder(p.ImportPath) == "test" {
			continue
		}
		for _, i := range p.Imports {
			if !strings.HasPrefix(i, module) || folder(i) == folder(p.ImportPath) {
				continue
			}
			if folder(i) == "test" {
				t.Errorf("%s imports %s: nothing outside test may know of it", p.ImportPath, i)
			}
			if floor(i) >= floor(p.ImportPath) {
				t.Errorf("%s may not import %s, which doesn't stand below it", p.ImportPath, i)
			}
		}
	}
}

// TestOrderInGPU: the data model doesn't import requests, and requests don't import the choice of
// devices.
func TestOrderInGPU(t *testing.T) {
	allowed := map[string][]string{
		"/gpu":             nil,
		"/gpu/request":     {"/gpu"},
		"/gpu/requirement": {"/gpu"},
		"/gpu/match":       {"/gpu", "/gpu/request"},
	}
	for _, p := range packages(t) {
		may, ruled := allowed[strings.TrimPrefix(p.ImportPath, module)]
		for _, i := range p.Imports {
			if ruled && folder(i) == "gpu" && !slices.Contains(may, strings.TrimPrefix(i, module)) {
				t.Errorf("%s may not import %s", p.ImportPath, i)
			}
		}
	}
}

// TestVerbsStayApart: packages of verbs don't import each other, and the shared packages import
// none of them.
func TestVerbsStayApart(t *testing.T) {
	const above = module + "/cmd/berth/"
	verbs := []string{"run", "apptainer", "nvidiacli", "task", "lease", "batches", "images", "node", "setup", "guard", "doctor"}
	shared := []string{"othertools", "verb", "helper", "output", "engines", "backend", "rootless", "waiting", "leasing"} // each may import those before it
	for _, p := range packages(t) {
		own, ok := strings.CutPrefix(p.ImportPath, above)
		if !ok {
			continue
		}
		if own != "verbtest" && !slices.Contains(verbs, own) && !slices.Contains(shared, own) {
			t.Errorf("%s is in no list of this test", p.ImportPath)
		}
		allowed := shared
		if at := slices.Index(shared, own); at >= 0 {
			allowed = shared[:at]
		}
		for _, i := range p.Imports {
			if name, ok := strings.CutPrefix(i, above); ok && !slices.Contains(allowed, name) {
				t.Errorf("%s may not import %s", p.ImportPath, i)
			}
		}
	}
}

func TestWhoImportsWhat(t *testing.T) {
	for _, rule := range []struct{ name, target, only string }{
		{"the command line library", "github.com/urfave/cli/v2", "cmd/berth/..."},
		{"NVML", "github.com/NVIDIA/go-nvml/pkg/nvml", "gpu/nvml"},
		{"cgo", "runtime/cgo", "gpu/nvml"},
		{"cgo's own package", module + "/gpu/nvml", "cmd/berth-nvml"},
		{"containerd's client", "github.com/containerd/containerd/v2/client", "launcher/containerd"},
		{"containerd's resolver", "github.com/containerd/containerd/v2/core/remotes/docker", "launcher/image/resolver"},
		{"the library of SIF files", "github.com/sylabs/sif/v2/pkg/sif", "launcher/sif/..."},
		{"the library of SIF files' signatures", "github.com/sylabs/sif/v2/pkg/integrity", "launcher/sif/signature"},
		{"signatures", module + "/launcher/sif/signature", "cmd/berth-containerd"},
		{"the engine on containerd", module + "/launcher/containerd", "cmd/berth-containerd"},
	} {
		t.Run(rule.name, func(t *testing.T) {
			for _, p := range packages(t) {
				if folder(p.ImportPath) != "test" && slices.Contains(p.Imports, rule.target) && !covers(rule.only, p.ImportPath) {
					t.Errorf("%s imports %s; only %s may", p.ImportPath, rule.target, rule.only)
				}
			}
		})
	}
}

// covers reports whether a path of the module is that of a rule; "/..." at its end stands for the packages below, too.
func covers(rule, path string) bool {
	above, below := strings.CutSuffix(module+"/"+rule, "/...")
	return path == above || below && strings.HasPrefix(path, above+"/")
}

// TestHotPathIsLight keeps packages that would slow down every start out of wrapper and hook, and
// packages that cost memory out of the monitor. Package net is not among them: with it and the
// netlink libraries a hook starts 0.1 ms later, and each monitor takes 0.05 MB more.
func TestHotPathIsLight(t *testing.T) {
	heavy := []string{"net/http", "text/template", "runtime/cgo", "github.com/urfave/cli/v2", "github.com/containerd/containerd/v2"}
	for _, p := range packages(t) {
		if !slices.Contains([]string{module + "/cmd/berth-runtime", module + "/cmd/berth-hook", module + "/cmd/berth-monitor"}, p.ImportPath) {
			continue
		}
		for _, d := range p.Deps {
			if slices.ContainsFunc(heavy, func(h string) bool { return d == h || strings.HasPrefix(d, h+"/v") }) {
				t.Errorf("%s links %s", p.ImportPath, d)
			}
		}
	}
}

func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listPackages()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return all
}

var listPackages = sync.OnceValues(func() (all []pkg, err error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", module+"/...")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

// TestEnginesStayOutside keeps containerd's libraries out of every other program.
func TestEnginesStayOutside(t *testing.T) {
	for _, p := range packages(t) {
		if folder(p.ImportPath) != "cmd" || p.ImportPath == module+"/cmd/berth-containerd" {
			continue
		}
		for _, d := range p.Deps {
			if strings.HasPrefix(d, "google.golang.org/grpc") || strings.HasPrefix(d, "github.com/containerd/containerd/v2/") {
				t.Errorf("%s links %s", p.ImportPath, d)
			}
		}
	}
}
