package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// docker, ufw and others have iptables drop all forwarded packets that aren't theirs. On
// such hosts rules are added that accept packets from gangs to outer interfaces, and the
// answers. Bridges of other containers stay closed to gangs: what no rule accepts is still
// dropped. See the package comment for why iptables' own program sets these rules.

// iptablesWildcard matches gangs' interfaces in a rule of iptables.
const iptablesWildcard = interfacePrefix + "+"

// iptablesPrograms are the programs of the variants of iptables whose filter table is in
// use on this host. A variant without a program is left out.
func (h Host) iptablesPrograms() (all []string, err error) {
	legacy, err := h.usesLegacyIPTables()
	if err != nil {
		return nil, err
	}
	if legacy {
		all = append(all, h.findProgram("iptables-legacy", "iptables"))
	}
	err = withNFTables(func(c *nftables.Conn) error {
		chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
		if err != nil {
			return firewallError("list the chains of nf_tables", err)
		}
		if slices.ContainsFunc(chains, isIPTablesForward) {
			all = append(all, h.findProgram("iptables-nft", "iptables"))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(path string) bool { return path == "" }), nil
}

// isIPTablesForward reports whether a chain is iptables-nft's chain FORWARD.
func isIPTablesForward(c *nftables.Chain) bool {
	return c.Table.Family == nftables.TableFamilyIPv4 && c.Table.Name == "filter" && c.Name == "FORWARD"
}

// usesLegacyIPTables reports whether the filter table of iptables-legacy is in use.
func (h Host) usesLegacyIPTables() (bool, error) {
	const most = 1 << 12
	names, err := smallfile.Read(filepath.Join(h.Proc, "thread-self/net/ip_tables_names"), most)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return slices.Contains(strings.Fields(string(names)), "filter"), err
}

// findProgram finds the first of these programs that exists; "" if none does.
func (h Host) findProgram(names ...string) string {
	for _, name := range names {
		for _, dir := range h.Programs {
			path := filepath.Join(dir, name)
			if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return path
			}
		}
	}
	return ""
}

// runIPTables runs iptables without this process's environment, and returns its output.
func (h Host) runIPTables(program string, words ...string) (string, error) {
	const limit = 20 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"--wait", "10"}, words...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	var out, message strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &message
	if err := h.RunCommand(cmd); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(words, " "), err, strings.ReplaceAll(strings.TrimSpace(message.String()), "\n", "; "))
	}
	return out.String(), nil
}

// openIPTables adds the missing rules that accept packets from gangs to outer interfaces
// and the answers; with relay, also DNS queries of gangs to the host. It is idempotent.
func (h Host) openIPTables(outer []string, relay bool) error {
	programs, err := h.iptablesPrograms()
	if err != nil {
		return err
	}
	for _, program := range programs {
		out, err := h.runIPTables(program, "-S")
		if err != nil {
			return err
		}
		for _, words := range parseFilterTable(out).missingRules(outer, relay) {
			if err := h.insertRule(program, words); err != nil {
				return err
			}
		}
	}
	return nil
}

// insertRule adds a rule, unless the program says that it has it: it may list a rule in
// other words than it was given. The arguments are "-I CHAIN NUMBER RULE…".
func (h Host) insertRule(program string, words []string) error {
	_, err := h.runIPTables(program, append([]string{"-C", words[1]}, words[3:]...)...)
	var exit interface{ ExitCode() int }
	if !errors.As(err, &exit) {
		return err
	}
	_, err = h.runIPTables(program, words...)
	return err
}

// closeIPTables removes the rules that openIPTables has added.
func (h Host) closeIPTables() error {
	programs, err := h.iptablesPrograms()
	if errors.Is(err, ErrFirewall) {
		return nil
	}
	for _, program := range programs {
		out, listErr := h.runIPTables(program, "-S")
		err = errors.Join(err, listErr)
		for _, words := range parseFilterTable(out).deleteCalls() {
			_, callErr := h.runIPTables(program, words...)
			err = errors.Join(err, callErr)
		}
	}
	return err
}

// filterTable is what iptables -S prints of the table filter.
type filterTable struct {
	policies map[string]string   // by chain
	rules    map[string][]string // by chain, without "-A CHAIN "
}

func parseFilterTable(text string) filterTable {
	t := filterTable{map[string]string{}, map[string][]string{}}
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		chain, rule, _ := strings.Cut(rest, " ")
		switch kind {
		case "-P":
			t.policies[chain] = rule
		case "-A":
			t.rules[chain] = append(t.rules[chain], rule)
		}
	}
	return t
}

// dropsUnmatched reports whether a chain drops packets that no rule accepts.
func (t filterTable) dropsUnmatched(chain string) bool {
	if t.policies[chain] == "DROP" {
		return true
	}
	return slices.ContainsFunc(t.rules[chain], func(rule string) bool {
		return rule == "-j DROP" || strings.HasPrefix(rule, "-j REJECT")
	})
}

// missingRules are the arguments of the calls that add the rules that the table lacks.
func (t filterTable) missingRules(outer []string, relay bool) (calls [][]string) {
	// docker keeps its chain for others' rules when it restarts, so that chain is preferred.
	// The admin's own rules in it stay before ours.
	const users = "DOCKER-USER"
	var wanted []string
	for _, name := range outer {
		wanted = append(wanted, "-i "+iptablesWildcard+" -o "+name+" -j ACCEPT")
	}
	wanted = append(wanted, "-o "+iptablesWildcard+" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	switch {
	case slices.Contains(t.rules["FORWARD"], "-j "+users):
		at := len(t.rules[users])
		if at > 0 && t.rules[users][at-1] == "-j RETURN" {
			at--
		}
		calls = t.insertCalls(users, at, wanted)
	case t.dropsUnmatched("FORWARD"):
		calls = t.insertCalls("FORWARD", 0, wanted)
	}
	if relay && t.dropsUnmatched("INPUT") {
		calls = append(calls, t.insertCalls("INPUT", 0, []string{
			"-i " + iptablesWildcard + " -p udp -m udp --dport 53 -j ACCEPT", "-i " + iptablesWildcard + " -p tcp -m tcp --dport 53 -j ACCEPT",
		})...)
	}
	return calls
}

// insertCalls are the arguments of the calls that insert those of the wanted rules that a
// chain lacks behind its first n rules.
func (t filterTable) insertCalls(chain string, n int, wanted []string) (calls [][]string) {
	for _, rule := range wanted {
		if !slices.Contains(t.rules[chain], rule) {
			n++
			calls = append(calls, append([]string{"-I", chain, strconv.Itoa(n)}, strings.Fields(rule)...))
		}
	}
	return calls
}

// deleteCalls are the arguments of the calls that delete all rules that name gangs'
// interfaces.
func (t filterTable) deleteCalls() (calls [][]string) {
	for chain, rules := range t.rules {
		for _, rule := range rules {
			if words := strings.Fields(rule); slices.Contains(words, iptablesWildcard) {
				calls = append(calls, append([]string{"-D", chain}, words...))
			}
		}
	}
	return calls
}
