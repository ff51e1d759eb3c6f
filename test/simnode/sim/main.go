package sim

import (
	"fmt"
	"os"
)

// marker is set for a test binary that was started again inside its node, and
// so for those that it starts itself there (fuzzing does).
const marker = "SIMNODE_TEST_NODE"

// Main runs a package's tests inside a simulated node: call it from TestMain.
// m is its *testing.M. It doesn't return. Without root the tests don't run, which is a failure if
// BERTH_TEST_ROOT=1, and is said otherwise.
func Main(m interface{ Run() int }, profile string, o Options) {
	if was, err := Loader(os.Args); was {
		exitWith(err)
	}
	kind := fmt.Sprint(profile, o)
	if _, err := Current(); err == nil && os.Getenv(marker) == kind {
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 && os.Getenv("BERTH_TEST_ROOT") != "1" {
		fmt.Println("SKIP: needs root for a simulated node")
		os.Exit(0)
	}
	self, err := os.Executable()
	if err == nil {
		env := append(os.Environ(), marker+"="+kind)
		err = Exec(profile, o, append([]string{self}, os.Args[1:]...), env)
	}
	exitWith(err)
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "simnode:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
