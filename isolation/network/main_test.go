package network

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be a process in the host's namespace: it calls the function that
// the variable names, and prints "done" or the error.
func TestMain(m *testing.M) {
	words := strings.Fields(os.Getenv("BERTH_TEST_CHILD"))
	if len(words) == 0 {
		os.Exit(m.Run())
	}
	if err := child(words); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("done")
}

func child(words []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch words[0] {
	case "relay":
		var servers []netip.Addr
		for _, w := range words[2:] {
			servers = append(servers, netip.MustParseAddr(w))
		}
		return RelayDNS(ctx, netip.MustParseAddr(words[1]), servers...)
	case "keep":
		n := Network{Gateway: netip.MustParseAddr(words[3]), Relay: len(words) > 4}
		return KeepRules(ctx, Options{Gang: words[1], State: words[2]}, n)
	case "probe-plain-kernel":
		if err := withoutNetfilter(); err != nil {
			return err
		}
		return Probe(ctx, Host{})
	case "plain-kernel":
		if err := withoutNetfilter(); err != nil {
			return err
		}
	}
	_, err := Connect(ctx, Options{Gang: words[1], NetNS: os.NewFile(3, "netns"), Out: true, State: words[2], Host: Host{Etc: words[2] + "/etc", Run: words[2] + "/run"}})
	return err
}

// withoutNetfilter makes the kernel refuse netlink sockets of netfilter to this process.
func withoutNetfilter() error {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	isnt := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	program := []unix.SockFilter{
		load(0), isnt(unix.SYS_SOCKET, 5), load(16), isnt(unix.AF_NETLINK, 3), load(32), isnt(unix.NETLINK_NETFILTER, 1),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)), answer(unix.SECCOMP_RET_ALLOW),
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return installFilter(&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
