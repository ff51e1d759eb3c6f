package run

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/gang/gangfile"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
	"github.com/berth-gpu/berth/launcher/spec"
)

// gangFlags returns the flags about gangs.
func gangFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "ranks", Aliases: []string{"n"}, Usage: "run `N` equal ranks as a gang: they start and fail together"},
		&cli.StringFlag{Name: "gang", Usage: "run the gang of unequal roles that `FILE` describes", TakesFile: true},
		&cli.StringFlag{Name: "gpus-per-rank", Usage: "lease what `REQUEST` says for each rank of a gang"},
		&cli.StringFlag{Name: "bind-gpus", Usage: "let a rank see the GPUs of `WHOM`: gang for those of all ranks that it communicates with, or rank for its own", Value: "gang"},
	}
}

// gangHelp is a part of the help of berth run.
const gangHelp = "With -n, N containers are a gang: one lease, near each other, and one network, in which they are rank-0 to\n" +
	"rank-(N-1). They start when all are created; when one fails the others are ended, and its exit code is the gang's.\n" +
	"Each has RANK, WORLD_SIZE, MASTER_ADDR and the other variables of PyTorch, DeepSpeed, Horovod, TensorFlow and JAX."

// isGang reports whether the command line asks for a gang.
func isGang(c *cli.Context) bool { return c.IsSet("ranks") || c.IsSet("gang") }

// checkGang refuses flags that have no meaning for a gang, or only for a gang.
func checkGang(c *cli.Context) error {
	if !isGang(c) {
		for _, flag := range []string{"gpus-per-rank", "bind-gpus"} {
			if c.IsSet(flag) {
				return verb.WrongCommandLine(c, "--"+flag+" needs a gang: -n 4, or --gang FILE")
			}
		}
		return nil
	}
	switch {
	case c.IsSet("ranks") && c.IsSet("gang"):
		return verb.WrongCommandLine(c, "-n and --gang exclude each other")
	case c.IsSet("gang") && c.NArg() > 1:
		return verb.WrongCommandLine(c, "with --gang, the file has the command of each role; the command line has only the image of roles without one")
	case c.IsSet("gang") && c.IsSet("gpus-per-rank"):
		return verb.WrongCommandLine(c, "--gpus-per-rank: with --gang, the file has the gpus of each role")
	case c.IsSet("gpus") || c.IsSet("device"):
		return verb.WrongCommandLine(c, "--gpus and --device are for single tasks; a gang takes --gpus-per-rank, or gpus in its file")
	case c.Bool("tty") || c.Bool("interactive"):
		return verb.WrongCommandLine(c, "a gang has neither a terminal nor standard input; berth exec -it opens a shell in one of its ranks")
	case c.IsSet("engine") && c.String("engine") != "":
		return verb.WrongCommandLine(c, "--engine: gangs are run by berth itself")
	}
	if which := c.String("bind-gpus"); which != "gang" && which != "rank" {
		return verb.WrongCommandLine(c, fmt.Sprintf("--bind-gpus %q is not known%s: it is gang or rank", which, spell.Suggestion(which, "gang", "rank")))
	}
	return nil
}

// runGang runs a gang: detached, or in the foreground until this process ends.
func runGang(c *cli.Context, conf berth.Config) error {
	if os.Geteuid() != 0 {
		return rootless.Run(c, conf) // before the file is read, which may be a pipe
	}
	session, _, err := openSession(conf)
	if err != nil {
		return err
	}
	g, err := gangOptions(c, conf)
	if err != nil {
		return err
	}
	warnOfIPv6(g.Network)
	if len(g.Stores) > 0 {
		if g.Server, err = os.Executable(); err != nil {
			return err
		}
	}
	req, err := newLaunchRequest(c, g.Request)
	if err != nil {
		return err
	}
	req.Gang, req.Lease.Network = &g, g.Network
	if c.Bool("detach") {
		return launchAndPrint(c, req, session)
	}
	if g.Viewer, err = backend.TaskStore(conf).Self(); err != nil {
		return err
	}
	return watchGang(c, conf, req, session)
}

// defaultGangNetwork returns the network of a gang for which none is named. A private one has an interface and rules of the
// host, which only root can make.
func defaultGangNetwork() string {
	if verb.IsHelped() {
		return "host"
	}
	return berth.NetworkPrivate
}

// checkGangNetwork returns an error for a network that a gang without root can't have.
func checkGangNetwork(kind string) error {
	switch {
	case !verb.IsHelped(), kind == "host", kind == "none":
		return nil
	case !slices.Contains(launcher.Networks(), kind):
		return fmt.Errorf("network %q is not known: without root a gang's is host or none", kind)
	}
	return fmt.Errorf("--network %s needs root, for it changes interfaces and rules of the host: without root there are host, where ports are shared with everybody, and none, where the ranks have lo to themselves", kind)
}

// warnOfIPv6 prints a warning to standard error if the host's only default route is IPv6, so
// that a gang can't reach other hosts. Without any default route there is no warning.
func warnOfIPv6(kind string) {
	if kind == "host" || kind == "none" {
		return
	}
	if only, err := network.LeadsOutByIPv6Only(); err == nil && only {
		fmt.Fprintln(os.Stderr, "berth: the gang can't reach other hosts: its network is IPv4, and this host has only an IPv6 default route; --network host shares the host's network")
	}
}

// gangOptions returns the options of the gang of a command line and its file.
func gangOptions(c *cli.Context, conf berth.Config) (launcher.GangOptions, error) {
	common, err := launchOptions(c, conf)
	if err != nil {
		return launcher.GangOptions{}, err
	}
	if !c.IsSet("network") {
		common.Network = ""
	}
	f, err := readGangFile(c)
	if err != nil {
		return launcher.GangOptions{}, err
	}
	g := launcher.GangOptions{Options: common}
	if err := readGangSettings(c, f, &g); err != nil {
		return g, nameFileInError(c, err)
	}
	g.Network = cmp.Or(g.Network, defaultGangNetwork())
	if err := checkGangNetwork(g.Network); err != nil {
		return g, err
	}
	var parts []request.Request
	for _, role := range f.Roles {
		made, err := makeRanks(c, common, f, role, &parts)
		if err != nil {
			return g, nameRoleInError(c, role, err)
		}
		g.Ranks = append(g.Ranks, made...)
	}
	if words := cmp.Or(c.String("nics"), f.NICs); len(parts) == 0 && (words != "" && words != "none" || g.Network == "rdma") {
		return g, errors.New("NICs need GPUs: add --gpus-per-rank 1, or gpus = \"1\" in the file")
	}
	if len(parts) > 0 {
		if g.Request, err = request.NewGang(parts); err != nil {
			return g, err
		}
		if g.Request, err = addNICs(c, f.NICs, g.Network, g.Request); err != nil {
			return g, err
		}
	}
	// These are set for each rank.
	g.Image, g.Command, g.Env, g.Volumes, g.Mounts = "", nil, nil, nil, nil
	g.Worlds = makeWorlds(g.Ranks, parts, f, g.Network)
	return g, assignPorts(&g, conf.TaskState())
}

// environmentLookup returns the function that looks up variables given by name alone (-e NAME). For a gang it
// hides variables that an outer launcher has set for its own ranks.
func environmentLookup(c *cli.Context) func(string) (string, bool) {
	if !isGang(c) {
		return os.LookupEnv
	}
	return func(name string) (string, bool) {
		if len(ranks.Scrub([]string{name + "="})) == 0 {
			return "", false
		}
		return os.LookupEnv(name)
	}
}

// makeRanks returns the ranks of one role, and appends their requests to parts.
func makeRanks(c *cli.Context, common launcher.Options, f gangfile.File, role gangfile.Role, parts *[]request.Request) ([]launcher.Rank, error) {
	o, err := roleOptions(c, common, f, role)
	if err != nil {
		return nil, err
	}
	var wanted request.Request
	if role.GPUs != "" {
		if wanted, err = request.Parse(role.GPUs); err != nil && !errors.Is(err, request.ErrNone) {
			word := "--gpus-per-rank"
			if c.IsSet("gang") {
				word = "gpus"
			}
			return nil, fmt.Errorf("%s: %w", word, err)
		}
	}
	var made []launcher.Rank
	for i := range role.Count() {
		r := launcher.Rank{Options: o, Role: role.Name, Index: i, Part: -1, World: -1}
		r.Env = slices.Clone(o.Env)
		if !wanted.IsZero() {
			r.Part = len(*parts)
			*parts = append(*parts, wanted)
		}
		made = append(made, r)
	}
	return made, nil
}

// roleOptions returns the options of each rank of a role: those of the command line, replaced
// by those of the file.
func roleOptions(c *cli.Context, o launcher.Options, f gangfile.File, role gangfile.Role) (launcher.Options, error) {
	// These belong to the gang as a whole.
	o.Name, o.Shm, o.CIDFile, o.Timeout, o.Restart = "", 0, "", 0, launcher.Options{}.Restart
	o.Image = cmp.Or(role.Image, f.Image, o.Image)
	if o.Image == "" {
		return o, errors.New("it has no image")
	}
	if len(role.Command) > 0 {
		o.Command = role.Command
	}
	if role.Entrypoint != nil {
		o.Entrypoint = role.Entrypoint
	}
	o.Env = slices.Concat(envEntries(f.Env), envEntries(role.Env), o.Env)
	o.Volumes = slices.Concat(f.Volumes, role.Volumes, o.Volumes)
	o.Dir, o.User = cmp.Or(role.Workdir, o.Dir), cmp.Or(role.User, o.User)
	o.ReadOnly, o.StopSignal = o.ReadOnly || role.ReadOnly, cmp.Or(role.StopSignal, o.StopSignal)
	o.CPUs = cmp.Or(role.CPUSet, o.CPUs)
	if role.CPUs != 0 {
		o.CPUQuota = role.CPUs
	}
	if role.Memory != "" {
		var err error
		if o.Memory, err = spec.ParseSize(role.Memory); err != nil {
			return o, fmt.Errorf("memory: %w", err)
		}
	}
	if err := checkStopSignal(c, &o); err != nil {
		return o, err
	}
	o.Init = o.Init || role.Init
	return o, nil
}

func envEntries(m map[string]string) (all []string) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return all
}

// addNICs adds the NICs of the flag or the file to a request. The default is none, and auto
// for the network rdma.
func addNICs(c *cli.Context, words, network string, r request.Request) (request.Request, error) {
	if c.IsSet("nics") {
		words = c.String("nics")
	}
	if words == "" && network == "rdma" {
		words = "auto"
	}
	if words == "" || words == "none" {
		return r, nil
	}
	r, err := r.WithNICs(words)
	if err != nil {
		return r, fmt.Errorf("--nics: %w", err)
	}
	return r, nil
}
