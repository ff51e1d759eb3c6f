//go:build amd64

package main

// audit is AUDIT_ARCH_X86_64.
const audit = 0xc000003e
