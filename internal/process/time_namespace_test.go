package process

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestTimeNamespace: a process has the same start in every time namespace.
func TestTimeNamespace(t *testing.T) {
	if os.Getenv("BERTH_TEST_INSIDE") != "" {
		start, err := Start("/proc", os.Getppid())
		fmt.Printf("start %d %v\n", start, err)
		return
	}
	testutil.NeedRoot(t)
	start, err := Start("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []string{"100000", "-1"} {
		cmd := exec.Command("unshare", "--time", "--boottime="+offset, "/proc/self/exe", "-test.run=^TestTimeNamespace$", "-test.v")
		cmd.Args[3], err = os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(os.Environ(), "BERTH_TEST_INSIDE=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var seen uint64
		for line := range strings.Lines(string(out)) {
			if n, _ := fmt.Sscanf(line, "start %d <nil>", &seen); n == 1 {
				break
			}
		}
		if seen != start {
			t.Errorf("boottime %s: start %d, want %d: %s", offset, seen, start, out)
		}
	}
}
