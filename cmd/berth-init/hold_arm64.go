//go:build arm64

package main

// audit is AUDIT_ARCH_AARCH64.
const audit = 0xc00000b7
