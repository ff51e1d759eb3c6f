package run

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher"
)

// port is a value of --publish: ports of the task, and the address and ports of the host.
type port struct {
	address   string    // of the host, "" for all
	host      portRange // the zero value for any
	container portRange
}

// portRange is a port, or several in a row.
type portRange struct{ first, last int }

func (r portRange) String() string {
	if r.first == r.last {
		return strconv.Itoa(r.first)
	}
	return fmt.Sprintf("%d-%d", r.first, r.last)
}

// parsePort reads docker's [[ADDRESS:][HOST]:]CONTAINER[/PROTOCOL]. HOST and CONTAINER are ports or ranges of ports.
func parsePort(text string) (port, error) {
	wrong := func() (port, error) {
		if !strings.ContainsAny(text, "0123456789") {
			return port{}, fmt.Errorf("--publish %q is no port, such as 8888:8888; --partition (Slurm's -p) isn't needed, for there are no partitions", text)
		}
		return port{}, fmt.Errorf("--publish %q is no port: it is [ADDRESS:]PORT:PORT, such as 8888:8888", text)
	}
	words, protocol, _ := strings.Cut(text, "/")
	if protocol != "" && protocol != "tcp" && protocol != "udp" && protocol != "sctp" {
		return wrong()
	}
	var p port
	at := strings.LastIndex(words, ":")
	var err error
	if p.container, err = parsePortRange(words[at+1:]); err != nil {
		return wrong()
	}
	if at < 0 {
		return p, nil
	}
	words = words[:at]
	at = strings.LastIndex(words, ":")
	if number := words[at+1:]; number != "" {
		if p.host, err = parsePortRange(number); err != nil {
			return wrong()
		}
	}
	if at >= 0 {
		address, err := netip.ParseAddr(strings.Trim(words[:at], "[]"))
		if err != nil {
			return wrong()
		}
		p.address = address.String()
	}
	return p, nil
}

// parsePortRange reads "8888" or "8888-8890".
func parsePortRange(text string) (r portRange, err error) {
	first, last, isRange := strings.Cut(text, "-")
	if r.first, err = parsePortNumber(first); err != nil || !isRange {
		r.last = r.first
		return r, err
	}
	if r.last, err = parsePortNumber(last); err == nil && r.last < r.first {
		err = strconv.ErrRange
	}
	return r, err
}

func parsePortNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return int(n), err
}

// readPorts checks the values of --publish. A task shares the host's network, so a port of the
// task is the same port of the host. A value that needs a mapping is refused.
func readPorts(c *cli.Context, o *launcher.Options) error {
	all := c.StringSlice("publish")
	if len(all) == 0 {
		return nil
	}
	network := c.String("network")
	if isGang(c) {
		network = cmp.Or(network, defaultGangNetwork())
	}
	if network != "" && network != "host" {
		return fmt.Errorf("--publish %s: the network %s can't be reached from outside; --network host shares the host's", all[0], network)
	}
	for _, text := range all {
		p, err := parsePort(text)
		if err != nil {
			return err
		}
		if p.host.first != 0 && p.host != p.container {
			return fmt.Errorf("--publish %s: the task shares the host's network, where ports aren't mapped: have it listen on %s, and publish %s:%s", text, p.host, p.host, p.host)
		}
		where := "at all addresses that it listens on"
		if p.address != "" {
			where = "and not only at " + p.address + " unless it listens there alone"
		}
		what := "port %s is"
		if p.container.first != p.container.last {
			what = "ports %s are"
		}
		fmt.Fprintf(os.Stderr, "berth: the task shares the host's network: its "+what+" the host's, %s\n", p.container, where)
	}
	return nil
}
