package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// needRoot says why this process can't lease and wall devices, if it can't:
// root of a user namespace has no say over the host's devices and cgroups.
func needRoot() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("this needs root, and runs as user %d: use sudo", os.Geteuid())
	}
	return needHost()
}

// needHost says why even uid 0 has no say here: it is that of a user namespace.
func needHost() error {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return fmt.Errorf("read the user namespace: %w", err)
	}
	if f := strings.Fields(string(ids)); len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295" {
		return errors.New("uid 0 of a user namespace is not root of the host: run berth outside of it")
	}
	return nil
}
