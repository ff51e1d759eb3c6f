// Command empty becomes the program that its arguments name, and does nothing
// else: what any wrapper in Go costs, whatever it does.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

func main() {
	path, err := exec.LookPath(os.Args[1])
	if err == nil {
		err = syscall.Exec(path, os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "empty:", err)
	os.Exit(1)
}
