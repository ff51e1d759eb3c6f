// Command empty becomes the program that its arguments name, and does nothing
// else: what any wrapper in Go costs, whatever it does. Without arguments it ends at
// once, as a hook that has nothing to do.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

func main() {
	if len(os.Args) < 2 {
		return
	}
	path, err := exec.LookPath(os.Args[1])
	if err == nil {
		err = syscall.Exec(path, os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "empty:", err)
	os.Exit(1)
}
