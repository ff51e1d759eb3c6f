// Command empty executes the program that its arguments name and does nothing else: it has the
// minimum cost of a wrapper in Go. Without arguments it ends at once, like a hook without work.
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
