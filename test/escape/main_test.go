// Package escape attacks containers' isolation as a hostile image, or a hostile program
// inside, would: one attack for each class of hole that injectors of devices are
// known to have had, and for each place of an image that berth touches.
//
// Every attack is first shown to work, on an injector that does what the field's old
// ones did (naive_test.go). Then berth stands in its place, as the runtime wrapper
// and as the hook, with runc and crun, on cgroup v1 and v2. What counts isn't what
// berth says, but what was gained: a file of the host changed or read, a program of
// the image run outside, a device opened that isn't the container's, an injector
// that hangs, falls over or eats the memory.
//
// go test runs each attack in one of the four worlds, in turn; make escape all of
// them in all worlds, and the races for longer.
package escape

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

var (
	everywhere = flag.Bool("escape.everywhere", false, "run each attack in every world, and say in the last line how they went")
	rounds     = flag.Int("escape.rounds", 50, "`rounds` of each race against the code that prepares a container; whole starts are a hundredth")
)

var shared struct {
	*rig.Rig
	probe, hook, evil string // see testdata
}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == naiveWord {
		os.Exit(naiveMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == racerWord {
		os.Exit(racerMain(os.Args[2:]))
	}
	flag.Parse()
	rig.Main(reporter{m}, setup)
}

func setup(r *rig.Rig) (err error) {
	shared.Rig = r
	rack.Sweep()
	if shared.probe, err = r.Compile("probe", "testdata/probe.c", "-static"); err != nil {
		return err
	}
	if shared.evil, err = r.Compile("evil.so", "testdata/evil.c", "-shared", "-fPIC"); err != nil {
		return err
	}
	if _, err := r.Compile("libhelper.so.1", "testdata/helper.c", "-shared", "-fPIC", "-Wl,-soname,libhelper.so.1"); err != nil {
		return err
	}
	shared.hook, err = r.Compile("naive-hook", "testdata/hook.c", "-L"+r.Dir, "-l:libhelper.so.1", "-Wl,--enable-new-dtags,-rpath,"+r.Dir)
	return err
}

// tally has the results: attacks that were made, that failed on the naive injector anywhere, and
// that worked on berth anywhere.
var tally = struct {
	sync.Mutex
	tried, failed, worked map[string]bool
	without               map[string]bool // reasons why attacks weren't made, by place
}{tried: map[string]bool{}, failed: map[string]bool{}, worked: map[string]bool{}, without: map[string]bool{}}

// reporter prints a summary of the attacks in one last line.
type reporter struct{ m *testing.M }

func (r reporter) Run() int {
	code := max(r.m.Run(), hosts.end())
	if !*everywhere {
		return code
	}
	tally.Lock()
	defer tally.Unlock()
	for _, text := range slices.Sorted(maps.Keys(tally.without)) {
		fmt.Println(text)
	}
	tried, naive, berth := len(tally.tried), len(tally.tried)-len(tally.failed), len(tally.worked)
	fmt.Printf("escape: %d attacks, %d worked on the naive injector, %d on berth\n", tried, naive, berth)
	if code == 0 && (tried == 0 || naive != tried || berth > 0) {
		code = 1
	}
	return code
}

// world is a simulated node with one of the runtimes.
type world struct {
	*rig.Node
	runtime string
	cgroup  string // the version
	devices map[string]device
	engine  *engine // creates the containers, unless the test does; see engine_test.go
	share   string  // directory of the test that an engine sees
}

// vendor is the CDI spec of another vendor.
const vendor = `{"cdiVersion":"0.6.0","kind":"vendor.example/nic","devices":[
	{"name":"all","containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0"}]}}]}`

// start returns the node with this version of cgroups.
func start(t *testing.T, cgroup string) *rig.Node {
	t.Helper()
	return shared.Once(t, cgroup, func() (*rig.Node, error) {
		n, err := shared.Start("dgx-h100", cgroup)
		if err != nil {
			return nil, err
		}
		return n, errors.Join(
			os.MkdirAll(n.Path("/etc/cdi"), 0o755),
			os.WriteFile(n.Path("/etc/cdi/vendor.json"), []byte(vendor), 0o644),
		)
	})
}

// eachWorld runs a test in all four worlds. Worlds of one node share its devices, so they run one
// after another.
func eachWorld(t *testing.T, f func(t *testing.T, number int, w *world)) {
	for i, cgroup := range []string{"v1", "v2"} {
		t.Run(cgroup, func(t *testing.T) {
			t.Parallel()
			n := start(t, cgroup)
			for j, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					f(t, 2*i+j, &world{Node: n, runtime: runtime, cgroup: cgroup, devices: accelerators(t, n)})
				})
			}
		})
	}
}
