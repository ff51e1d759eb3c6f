package run

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// launchOptions returns the options of a task from the command line.
func launchOptions(c *cli.Context, conf berth.Config) (launcher.Options, error) {
	command := c.Args().Tail()
	if len(command) > 0 && command[0] == "--" { // as in berth alloc
		command = command[1:]
	}
	o := launcher.Options{
		Image: c.Args().First(), Interactive: c.Bool("interactive"), Name: c.String("name"),
		State: conf.TaskState(), Data: conf.TaskData(), Cgroup: conf.Host.Cgroup, Config: conf.Path(), Inspect: conf.InspectDevices,
		Progress: backend.PrintUnpacking(time.Now()),
	}
	if conf.UserData != "" { // leases are the broker's to end
		o.Inspect = nil
	}
	o.Fetch, o.Retention = backend.NewImageFetcher(c, conf, backend.ImageStore(conf), o.Progress), backend.Retention(conf)
	runtime, err := chosenRuntime(c)
	if err != nil {
		return o, err
	}
	o.Runtime = cmp.Or(runtime, conf.Runtime)
	o.Settings = parseSettings(c)
	o.Command = command
	o.StopSignal, o.CIDFile = c.String("stop-signal"), c.String("cidfile")
	for _, read := range []func(*cli.Context, *launcher.Options) error{
		readEnvironment, readSizes, readNumbers, readMounts, readUlimits, readSecurity, readNamespaces, readHosts, readLabels, checkStopSignal, readLifecycle, readPullFlags, readMPI, readPorts,
	} {
		if err := read(c, &o); err != nil {
			return o, err
		}
	}
	return o, nil
}

// chosenRuntime returns the value of --runtime, "" for the configured one. "nvidia" and "berth" mean the
// configured runtime if devices are requested, because every runtime gets devices and driver files from
// berth. Without a request they are an error: they would bring no GPU.
func chosenRuntime(c *cli.Context) (string, error) {
	switch word := c.String("runtime"); word {
	case "nvidia", "nvidia-container-runtime", "berth":
		if c.String("gpus") == "" && c.String("gpus-per-rank") == "" && len(c.StringSlice("device")) == 0 {
			return "", verb.UsageError{Err: fmt.Errorf("--runtime %s gives no GPUs: --gpus all asks for all, --gpus 2 for two free ones, --gpus device=0,1 for these two", word)}
		}
		return "", nil
	default:
		return word, nil
	}
}

// parseSettings returns the settings whose flags need no parsing.
func parseSettings(c *cli.Context) spec.Settings {
	s := spec.Settings{
		Volumes: c.StringSlice("volume"), Dir: c.String("workdir"), User: c.String("user"),
		Terminal: c.Bool("tty"), Network: cmp.Or(c.String("network"), "host"), ReadOnly: c.Bool("read-only"), ReadWrite: c.Bool("rw"),
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

// readEnvironment reads the task's variables from --env and --env-file.
func readEnvironment(c *cli.Context, o *launcher.Options) (err error) {
	o.Env, err = verb.ReadEnv(c, environmentLookup(c))
	return err
}

func readSizes(c *cli.Context, o *launcher.Options) (err error) {
	for _, opt := range c.StringSlice("storage-opt") {
		name, value, _ := strings.Cut(opt, "=")
		if name != "size" {
			return fmt.Errorf("--storage-opt %q: there is size%s", opt, spell.Suggestion(name, "size"))
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
		// 0 means "at once" on the command line, and "not set" in the options.
		"stop-timeout": func(n int64) { o.StopTimeout = cmp.Or(time.Duration(n)*time.Second, 1) },
	} {
		s := c.String(flag)
		if s == "" {
			continue
		}
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil {
			if flag == "cpu-shares" {
				return fmt.Errorf("--cpu-shares %q is not a number; --contain (Apptainer's -c) isn't needed, for a task is isolated from the host", s)
			}
			return fmt.Errorf("--%s %q is not a number", flag, s)
		}
		if flag == "stop-timeout" && n < -1 {
			return fmt.Errorf("--stop-timeout %s is no time; -1 means no limit", s)
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
			on, err := strconv.ParseBool(cmp.Or(value, "true"))
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
			return fmt.Errorf("--security-opt %s: with the hidden files of /proc, root in the task could become root of the host; --privileged allows that", s)
		default:
			return fmt.Errorf("--security-opt %q is not known%s: there are no-new-privileges[=false], seccomp=FILE|unconfined and apparmor=NAME|unconfined", s, spell.Suggestion(key, "no-new-privileges", "seccomp", "apparmor", "label"))
		}
	}
	return nil
}

func readNamespaces(c *cli.Context, o *launcher.Options) error {
	if network := c.String("network"); verb.IsFlag(network) {
		return fmt.Errorf("--network (or --net) %s: the value is a network, as in --network none", network)
	}
	if pid := c.String("pid"); pid != "" && pid != "private" {
		return fmt.Errorf("--pid %s: a task that sees processes of other tasks could take their open devices; berth ps shows tasks", pid)
	}
	if userns := c.String("userns"); userns != "" && userns != "host" {
		return fmt.Errorf("--userns %s: tasks have the host's user namespace; --user runs one as another user than root", userns)
	}
	for _, s := range c.StringSlice("sysctl") {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return fmt.Errorf("--sysctl %q is not NAME=VALUE", s)
		}
		o.Sysctls = addEntry(o.Sysctls, name, value)
	}
	return nil
}

func addEntry(m map[string]string, key, value string) map[string]string {
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
		entries, err := verb.ReadEntries(c.Context, "label-file", path, nil)
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
		o.Labels = addEntry(o.Labels, name, value)
	}
	for _, s := range c.StringSlice("annotation") {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return fmt.Errorf("--annotation %q is not NAME=VALUE", s)
		}
		o.Annotations = addEntry(o.Annotations, name, value)
	}
	return nil
}

// checkStopSignal checks the value of --stop-signal here, so that the error names the flag.
func checkStopSignal(c *cli.Context, o *launcher.Options) error {
	if o.StopSignal == "" {
		return nil
	}
	if _, err := supervise.ParseSignal(o.StopSignal); err != nil {
		return fmt.Errorf("--stop-signal: %w", err)
	}
	return nil
}
