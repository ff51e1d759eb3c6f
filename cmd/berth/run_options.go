package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// launchOptions is what the command line says of a task.
func launchOptions(c *cli.Context, conf berth.Config) (launcher.Options, error) {
	command := c.Args().Tail()
	if len(command) > 0 && command[0] == "--" { // as in berth alloc
		command = command[1:]
	}
	o := launcher.Options{
		Image: c.Args().First(), Interactive: c.Bool("interactive"), Name: c.String("name"),
		Runtime: conf.Runtime, State: conf.State, Data: conf.Data, Cgroup: conf.Host.Cgroup,
		Progress: sayUnpacking(time.Now()),
	}
	o.Fetch, o.Retention = imageFetcher(conf, o.Progress), retentionOf(conf)
	if c.IsSet("runtime") {
		o.Runtime = c.String("runtime")
	}
	switch o.Runtime {
	case "nvidia", "nvidia-container-runtime", "berth":
		return o, usageError{fmt.Errorf("--runtime %s isn't needed: --gpus brings devices and driver files; without --runtime the container is run by crun or runc", o.Runtime)}
	}
	o.Settings = parseSettings(c)
	o.Command = command
	o.StopSignal, o.CIDFile = c.String("stop-signal"), c.String("cidfile")
	for _, read := range []func(*cli.Context, *launcher.Options) error{
		readEnv, readSizes, readNumbers, readMounts, readUlimits, readSecurity, readNamespaces, readHosts, readLabels, checkStopSignal, readLifecycle, readPullFlags, readMPI, readPorts,
	} {
		if err := read(c, &o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// parseSettings are those that are taken as they were written.
func parseSettings(c *cli.Context) spec.Settings {
	s := spec.Settings{
		Volumes: c.StringSlice("volume"), Dir: c.String("workdir"), User: c.String("user"),
		Terminal: c.Bool("tty"), Network: or(c.String("network"), "host"), ReadOnly: c.Bool("read-only"), ReadWrite: c.Bool("rw"),
		Groups: c.StringSlice("group-add"), Hostname: c.String("hostname"), Domainname: c.String("domainname"),
		IPC: c.String("ipc"), UTS: c.String("uts"), CgroupNS: c.String("cgroupns"),
		Init:     c.Bool("init"),
		Resolver: spec.Resolver{Servers: c.StringSlice("dns"), Search: c.StringSlice("dns-search"), Options: c.StringSlice("dns-option")},
	}
	s.CapAdd, s.CapDrop, s.Privileged = c.StringSlice("cap-add"), c.StringSlice("cap-drop"), c.Bool("privileged")
	s.CPUs, s.MemoryNodes = c.String("cpuset-cpus"), c.String("cpuset-mems")
	if c.IsSet("entrypoint") {
		s.Entrypoint = []string{}
		if program := c.String("entrypoint"); program != "" {
			s.Entrypoint = []string{program}
		}
	}
	return s
}

// readEnv: files first, whose entries --env replaces.
func readEnv(c *cli.Context, o *launcher.Options) error {
	lookUp := environmentLookup(c)
	for _, path := range c.StringSlice("env-file") {
		entries, err := readEntries("env-file", path, lookUp)
		if err != nil {
			return err
		}
		o.Env = append(o.Env, entries...)
	}
	for _, kv := range c.StringSlice("env") {
		if !strings.Contains(kv, "=") {
			value, ok := lookUp(kv)
			if !ok {
				continue // as docker does: what isn't set here isn't set there
			}
			kv += "=" + value
		}
		o.Env = append(o.Env, kv)
	}
	return nil
}

func readEntries(flag, path string, lookup func(string) (string, bool)) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	entries, err := spec.ParseEnvFile(f, lookup)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, path, err)
	}
	return entries, nil
}

func readSizes(c *cli.Context, o *launcher.Options) (err error) {
	for _, opt := range c.StringSlice("storage-opt") {
		name, value, _ := strings.Cut(opt, "=")
		if name != "size" {
			return fmt.Errorf("--storage-opt %q: there is size%s", opt, didYouMean(name, []string{"size"}))
		}
		if o.StorageSize, err = spec.ParseSize(value); err != nil {
			return fmt.Errorf("--storage-opt %q: %w", opt, err)
		}
	}
	for flag, to := range map[string]*int64{
		"memory": &o.Memory, "shm-size": &o.Shm, "memory-swap": &o.MemorySwap, "memory-reservation": &o.MemoryReservation,
	} {
		if flag == "memory-swap" && c.String(flag) == "-1" {
			*to = -1
			continue
		}
		if *to, err = parseBytes(c, flag); err != nil {
			return err
		}
	}
	if s := c.String("cpus"); s != "" {
		var ok bool
		if o.CPUQuota, ok = parsePositive(s); !ok {
			return fmt.Errorf("--cpus %q is not a number of CPUs, such as 2 or 1.5", s)
		}
	}
	return nil
}

// parsePositive reads a decimal number: neither "NaN", "Inf", "1e9" nor "1_000".
func parsePositive(s string) (n float64, ok bool) {
	n, err := strconv.ParseFloat(s, 64)
	return n, err == nil && n > 0 && strings.Trim(s, "0123456789.") == ""
}

func parseBytes(c *cli.Context, flag string) (int64, error) {
	s := c.String(flag)
	if s == "" {
		return 0, nil
	}
	n, err := spec.ParseSize(s)
	if err != nil {
		return 0, fmt.Errorf("--%s %w", flag, err)
	}
	return n, nil
}

func readNumbers(c *cli.Context, o *launcher.Options) error {
	for flag, use := range map[string]func(int64){
		"pids-limit":    func(n int64) { o.Pids = n },
		"cpu-shares":    func(n int64) { o.CPUShares = uint64(max(n, 0)) },
		"oom-score-adj": func(n int64) { adj := int(n); o.OOMScoreAdj = &adj },
		// Zero is "at once" here, and "not said" there.
		"stop-timeout": func(n int64) { o.StopTimeout = cmp.Or(time.Duration(n)*time.Second, 1) },
	} {
		s := c.String(flag)
		if s == "" {
			continue
		}
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil {
			return fmt.Errorf("--%s %q is not a number", flag, s)
		}
		if flag == "stop-timeout" && n < -1 {
			return fmt.Errorf("--stop-timeout %s is no time; -1 is for ever", s)
		}
		use(n)
	}
	return nil
}

func readMounts(c *cli.Context, o *launcher.Options) error {
	for _, s := range c.StringSlice("mount") {
		m, err := spec.ParseMount(s)
		if err != nil {
			return err
		}
		o.Mounts = append(o.Mounts, m)
	}
	for _, s := range c.StringSlice("tmpfs") {
		m, err := spec.ParseTmpfs(s)
		if err != nil {
			return err
		}
		o.Mounts = append(o.Mounts, m)
	}
	return nil
}

func readUlimits(c *cli.Context, o *launcher.Options) error {
	for _, s := range c.StringSlice("ulimit") {
		l, err := spec.ParseUlimit(s)
		if err != nil {
			return err
		}
		o.Ulimits = append(o.Ulimits, l)
	}
	return nil
}

// readSecurity reads Docker's options, which have = or : between key and value.
func readSecurity(c *cli.Context, o *launcher.Options) error {
	for _, s := range c.StringSlice("security-opt") {
		at := strings.IndexAny(s, "=:")
		key, value := s, ""
		if at >= 0 {
			key, value = s[:at], s[at+1:]
		}
		switch {
		case key == "no-new-privileges":
			on, err := strconv.ParseBool(or(value, "true"))
			if err != nil {
				return fmt.Errorf("--security-opt %s: no-new-privileges is true or false", s)
			}
			o.NewPrivileges = !on
		case key == "seccomp" && value == "builtin":
			o.Seccomp = ""
		case key == "seccomp" && value != "":
			o.Seccomp = value
		case key == "apparmor" && value != "":
			o.AppArmor = value
		case s == "label=disable", s == "label:disable":
		case key == "label":
			return fmt.Errorf("--security-opt %s: berth sets no SELinux labels; leave it out", s)
		case key == "systempaths":
			return fmt.Errorf("--security-opt %s: what is hidden of /proc would make root inside root outside; --privileged is for tasks that are to be", s)
		default:
			return fmt.Errorf("--security-opt %q is not known%s: there are no-new-privileges[=false], seccomp=FILE|unconfined and apparmor=NAME|unconfined", s, didYouMean(key, []string{"no-new-privileges", "seccomp", "apparmor", "label"}))
		}
	}
	return nil
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

func readNamespaces(c *cli.Context, o *launcher.Options) error {
	if pid := c.String("pid"); pid != "" && pid != "private" {
		return fmt.Errorf("--pid %s: a task that sees others' processes could take their open devices; see them with berth ps and on the host", pid)
	}
	if userns := c.String("userns"); userns != "" && userns != "host" {
		return fmt.Errorf("--userns %s: tasks have the host's users; --user runs one as somebody else than root", userns)
	}
	for _, s := range c.StringSlice("sysctl") {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return fmt.Errorf("--sysctl %q is not NAME=VALUE", s)
		}
		o.Sysctls = withEntry(o.Sysctls, name, value)
	}
	return nil
}

func withEntry(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

func readHosts(c *cli.Context, o *launcher.Options) error {
	for _, s := range c.StringSlice("add-host") {
		at := strings.IndexAny(s, "=:")
		if at <= 0 {
			return fmt.Errorf("--add-host %q is not NAME:ADDRESS", s)
		}
		name, address := s[:at], strings.Trim(s[at+1:], "[]")
		if address == "host-gateway" {
			return fmt.Errorf("--add-host %s: a task shares the host's network: localhost is the host", s)
		}
		if _, err := netip.ParseAddr(address); err != nil || strings.ContainsAny(name, " \t\n#") {
			return fmt.Errorf("--add-host %s: %q is not an address", s, address)
		}
		o.Hosts = append(o.Hosts, address+"\t"+name)
	}
	for _, s := range o.Resolver.Servers {
		if _, err := netip.ParseAddr(s); err != nil {
			return fmt.Errorf("--dns %q is not an address", s)
		}
	}
	for _, words := range [][]string{o.Resolver.Search, o.Resolver.Options} {
		for _, w := range words {
			if w == "" || strings.ContainsAny(w, " \t\n") {
				return fmt.Errorf("--dns-search, --dns-option: %q is not one word", w)
			}
		}
	}
	return nil
}

func readLabels(c *cli.Context, o *launcher.Options) error {
	given := []string{}
	for _, path := range c.StringSlice("label-file") {
		entries, err := readEntries("label-file", path, nil)
		if err != nil {
			return err
		}
		given = append(given, entries...)
	}
	for _, s := range append(given, c.StringSlice("label")...) {
		name, value, _ := strings.Cut(s, "=")
		if name == "" {
			return fmt.Errorf("--label %q has no name", s)
		}
		o.Labels = withEntry(o.Labels, name, value)
	}
	for _, s := range c.StringSlice("annotation") {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return fmt.Errorf("--annotation %q is not NAME=VALUE", s)
		}
		o.Annotations = withEntry(o.Annotations, name, value)
	}
	return nil
}

// checkStopSignal: a signal is checked here, so that the line names the flag.
func checkStopSignal(c *cli.Context, o *launcher.Options) error {
	if o.StopSignal == "" {
		return nil
	}
	if _, err := supervise.ParseSignal(o.StopSignal); err != nil {
		return fmt.Errorf("--stop-signal: %w", err)
	}
	return nil
}
