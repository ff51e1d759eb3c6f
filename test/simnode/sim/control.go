package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Actions describes the actions of [Control].
const Actions = `lose GPU                    the GPU falls off the bus: NVML says it is lost
drop GPU                    so it does, and its PCI configuration space reads as ones
restore GPU                 it is back
replace GPU                 another GPU is in its place: the same address and node, a new UUID
hang FUNCTION [GPU…]        calls of the NVML function hang, for these GPUs or all
unhang [FUNCTION]
fail FUNCTION CODE [GPU…]   they fail with NVML's error code
unfail [FUNCTION]
process GPU PID SIZE        a process holds memory (512M, 40G; a number is MiB; 0: none)
mig GPU LAYOUT              cut into 3g.40gb,1g.10gb (3g.40gb:1c:2c for two compute instances), on, off
driver VERSION              the driver is another version, its files included
uvm load|unload             the module nvidia-uvm
uvm-major N                 it has another major
nodes                       make all device nodes, after -bare-nodes
show                        print the state
`

// Control changes the node that the caller is in. It is safe to be called by
// several processes at once. A change is complete when it returns.
func Control(args ...string) error {
	if len(args) == 0 {
		return errors.New("no action")
	}
	if args[0] == "show" {
		b, err := os.ReadFile(filepath.Join(Dir, "node.json"))
		if err != nil {
			return fmt.Errorf("read node's state: %w", err)
		}
		_, err = os.Stdout.Write(b)
		return err
	}
	return update(func(n *Node) error {
		if err := n.act(args[0], args[1:]); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
		}
		return nil
	})
}

func (n Node) clone() Node {
	n.GPUs = slices.Clone(n.GPUs)
	majors := map[string]int{}
	for name, major := range n.Majors {
		majors[name] = major
	}
	n.Majors = majors
	return n
}

// act changes only the state.
func (n *Node) act(action string, args []string) error {
	actions := map[string]struct {
		least int
		do    func(args []string) error
	}{
		"lose":      {1, func(a []string) error { return n.lose(a[0], true, false) }},
		"drop":      {1, func(a []string) error { return n.lose(a[0], true, true) }},
		"restore":   {1, func(a []string) error { return n.lose(a[0], false, false) }},
		"replace":   {1, n.replace},
		"hang":      {1, n.hang},
		"unhang":    {0, func(a []string) error { n.Hang = removeFunction(n.Hang, a); return nil }},
		"fail":      {2, n.fail},
		"unfail":    {0, func(a []string) error { n.Fail = removeFunction(n.Fail, a); return nil }},
		"process":   {3, n.process},
		"mig":       {2, n.mig},
		"driver":    {1, n.setDriver},
		"uvm":       {1, n.setUVM},
		"uvm-major": {1, n.setMajor},
		"nodes":     {0, func([]string) error { n.Bare = false; return nil }},
	}
	a, known := actions[action]
	if !known {
		return errors.New("unknown action")
	}
	if len(args) < a.least {
		return fmt.Errorf("needs %d more words", a.least-len(args))
	}
	return a.do(args)
}

func (n *Node) gpu(word string) (*GPUState, int, error) {
	i, err := strconv.Atoi(word)
	if err != nil || i < 0 || i >= len(n.GPUs) {
		return nil, 0, fmt.Errorf("no GPU %q: they are 0 to %d", word, len(n.GPUs)-1)
	}
	return &n.GPUs[i], i, nil
}

func (n *Node) lose(word string, lost, dropped bool) error {
	g, _, err := n.gpu(word)
	if err != nil {
		return err
	}
	g.Lost, g.Dropped = lost, dropped
	return nil
}

func (n *Node) replace(args []string) error {
	g, _, err := n.gpu(args[0])
	if err != nil {
		return err
	}
	g.Replaced++
	return nil
}

// call returns an NVML function's name without its version, and the GPUs to which the action
// applies, "*" for all.
func (n *Node) call(name string, gpus []string) (string, []string, error) {
	if !strings.HasPrefix(name, "nvml") {
		return "", nil, fmt.Errorf("%q isn't a function of NVML", name)
	}
	for _, word := range gpus {
		if _, _, err := n.gpu(word); err != nil {
			return "", nil, err
		}
	}
	if len(gpus) == 0 {
		gpus = []string{"*"}
	}
	name, _, _ = strings.Cut(name, "_v")
	return name, gpus, nil
}

func (n *Node) hang(args []string) error {
	name, gpus, err := n.call(args[0], args[1:])
	if err != nil {
		return err
	}
	if n.Hang == nil {
		n.Hang = map[string][]string{}
	}
	n.Hang[name] = gpus
	return nil
}

func (n *Node) fail(args []string) error {
	name, gpus, err := n.call(args[0], args[2:])
	if err != nil {
		return err
	}
	code, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("error code %q isn't a number", args[1])
	}
	if n.Fail == nil {
		n.Fail = map[string]Failure{}
	}
	n.Fail[name] = Failure{Code: code, GPUs: gpus}
	return nil
}

// removeFunction removes the named function, or all.
func removeFunction[V any](of map[string]V, names []string) map[string]V {
	if len(names) == 0 {
		return nil
	}
	for _, name := range names {
		name, _, _ = strings.Cut(name, "_v")
		delete(of, name)
	}
	return of
}

func (n *Node) process(args []string) error {
	g, _, err := n.gpu(args[0])
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("process id %q isn't a number", args[1])
	}
	mib, err := parseMiB(args[2])
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(g.Processes), func(p Process) bool { return p.PID == pid })
	if mib > 0 {
		others = append(others, Process{PID: pid, MiB: mib})
	}
	g.Processes = others
	return nil
}

func parseMiB(text string) (uint64, error) {
	unit := uint64(1)
	digits := text
	switch {
	case strings.HasSuffix(text, "G"):
		digits, unit = strings.TrimSuffix(text, "G"), 1024
	case strings.HasSuffix(text, "M"):
		digits = strings.TrimSuffix(text, "M")
	}
	v, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("size %q isn't like 512M or 40G", text)
	}
	return v * unit, nil
}

func (n *Node) mig(args []string) error {
	g, i, err := n.gpu(args[0])
	if err != nil {
		return err
	}
	g.MIG, g.Instances, err = n.Blueprint().GPUs[i].Model.layOut(args[1])
	return err
}

func (n *Node) setDriver(args []string) error {
	if strings.Trim(args[0], "0123456789.") != "" {
		return fmt.Errorf("driver version %q isn't like 560.35.03", args[0])
	}
	n.Driver = args[0]
	return nil
}

func (n *Node) setUVM(args []string) error {
	if args[0] != "load" && args[0] != "unload" {
		return errors.New("is load or unload")
	}
	n.UVM = args[0] == "load"
	return nil
}

func (n *Node) setMajor(args []string) error {
	number, err := strconv.Atoi(args[0])
	if err != nil || number < 1 || number > 511 {
		return fmt.Errorf("major %q isn't in 1 … 511", args[0])
	}
	n.Majors["nvidia-uvm"] = number
	return nil
}
