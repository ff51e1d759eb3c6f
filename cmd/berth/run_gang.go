package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/gang/gangfile"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// gangFlags make a gang of a run.
func gangFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "ranks", Aliases: []string{"n"}, Usage: "run `N` equal ranks as a gang: they start and fail together"},
		&cli.StringFlag{Name: "gang", Usage: "run the gang of unequal roles that `FILE` describes", TakesFile: true},
		&cli.StringFlag{Name: "gpus-per-rank", Usage: "lease what `REQUEST` says for each rank of a gang"},
		&cli.StringFlag{Name: "bind-gpus", Usage: "let a rank see the GPUs of `WHOM`: gang, all with which it computes, or rank, its own", Value: "gang"},
	}
}

// gangHelp is a part of the help of berth run.
const gangHelp = "With -n, N containers are a gang: one lease, near each other, and one network, in which they are rank-0 to\n" +
	"rank-(N-1). All start when all are made; when one fails the others are ended, and its exit code is the gang's.\n" +
	"Each finds RANK, WORLD_SIZE, MASTER_ADDR and what else PyTorch, DeepSpeed, Horovod, TensorFlow and JAX read."

// isGang says whether a gang is asked for.
func isGang(c *cli.Context) bool { return c.IsSet("ranks") || c.IsSet("gang") }

// checkGang is for flags that mean nothing without a gang, or with one.
func checkGang(c *cli.Context) error {
	if !isGang(c) {
		for _, flag := range []string{"gpus-per-rank", "bind-gpus"} {
			if c.IsSet(flag) {
				return wrongCommandLine(c, "--"+flag+" is for gangs: -n 4, or --gang FILE")
			}
		}
		return nil
	}
	switch {
	case c.IsSet("ranks") && c.IsSet("gang"):
		return wrongCommandLine(c, "-n and --gang are two ways to say what a gang is; give one")
	case c.IsSet("gang") && c.NArg() > 1:
		return wrongCommandLine(c, "with --gang, each role says its command in the file; an image besides is for roles that name none")
	case c.IsSet("gang") && c.IsSet("gpus-per-rank"):
		return wrongCommandLine(c, "--gpus-per-rank: with --gang, each role says its gpus in the file")
	case c.IsSet("gpus") || c.IsSet("device"):
		return wrongCommandLine(c, "--gpus and --device are for single tasks; a gang's are said by --gpus-per-rank, or in its file")
	case c.Bool("tty") || c.Bool("interactive"):
		return wrongCommandLine(c, "a gang has neither a terminal nor standard input; berth exec -it opens a shell in one of its ranks")
	case c.IsSet("engine") && c.String("engine") != "":
		return wrongCommandLine(c, "--engine: gangs are run by berth itself")
	}
	if which := c.String("bind-gpus"); which != "gang" && which != "rank" {
		return wrongCommandLine(c, fmt.Sprintf("--bind-gpus %q is not known%s: it is gang or rank", which, didYouMean(which, []string{"gang", "rank"})))
	}
	return nil
}

// runGang runs a gang: detached, or in the foreground, where it ends with this process.
func runGang(c *cli.Context, conf berth.Config) error {
	g, err := gangOptions(c, conf)
	if err != nil {
		return exitError{exitBerth, err}
	}
	if err := needRoot(); err != nil {
		return exitError{exitBerth, err}
	}
	if os.Getenv("BERTH_LEASE") != "" {
		return exitError{exitBerth, errors.New("a gang takes a lease of its own; unset BERTH_LEASE to do so")}
	}
	warnOfIPv6(g.Network)
	if len(g.Stores) > 0 {
		if g.Server, err = os.Executable(); err != nil {
			return exitError{exitBerth, err}
		}
	}
	req := newLaunchRequest(c, g.Request)
	req.Gang = &g
	if c.Bool("detach") {
		return launchAndPrint(c, req)
	}
	if g.Viewer, err = taskStore(conf).Self(); err != nil {
		return exitError{exitBerth, err}
	}
	return watchGang(c, conf, req)
}

// warnOfIPv6 writes to standard error that a gang can't reach the outside, if the host's way
// out is IPv6 alone. A host with neither is one without a way out, which the admin knows.
func warnOfIPv6(kind string) {
	if kind == "host" || kind == "none" {
		return
	}
	if only, err := network.LeadsOutByIPv6Only(); err == nil && only {
		fmt.Fprintln(os.Stderr, "berth: the gang reaches nothing outside: its network has IPv4, and this host has a default route of IPv6 alone; --network host has the host's network")
	}
}

// gangOptions are what command line and file say of a gang.
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
	var parts []request.Request
	for _, role := range f.Roles {
		made, err := makeRanks(c, common, f, role, &parts)
		if err != nil {
			return g, nameRoleInError(c, role, err)
		}
		g.Ranks = append(g.Ranks, made...)
	}
	if words := or(c.String("nics"), f.NICs); len(parts) == 0 && (words != "" && words != "none" || g.Network == "rdma") {
		return g, errors.New("NICs go with GPUs: say what each rank leases, with --gpus-per-rank 1 or gpus = \"1\"")
	}
	if len(parts) > 0 {
		if g.Request, err = request.NewGang(parts); err != nil {
			return g, err
		}
		if g.Request, err = addNICs(c, f.NICs, g.Network, g.Request); err != nil {
			return g, err
		}
	}
	// What is the ranks' isn't the whole's.
	g.Image, g.Command, g.Env, g.Volumes, g.Mounts = "", nil, nil, nil, nil
	g.Worlds = makeWorlds(g.Ranks, parts, f, or(g.Network, "private"))
	return g, assignPorts(&g, conf.State)
}

// nameFileInError adds the gang's file to an error.
func nameFileInError(c *cli.Context, err error) error {
	if !c.IsSet("gang") {
		return err
	}
	return fmt.Errorf("--gang %s: %w", c.String("gang"), err)
}

// nameRoleInError adds file and role to an error. A gang of -n has only one role.
func nameRoleInError(c *cli.Context, role gangfile.Role, err error) error {
	if !c.IsSet("gang") {
		return err
	}
	return nameFileInError(c, fmt.Errorf("role %q: %w", role.Name, err))
}

// assignPorts gives each world ports of its own: in a network that others use too, such that no
// other gang has them.
func assignPorts(g *launcher.GangOptions, state string) error {
	first, count := ranks.DefaultPort, 0
	for _, w := range g.Worlds {
		count += ranks.Ports(len(w.Ranks))
	}
	if g.Network == "host" {
		if err := os.MkdirAll(or(state, "/run/berth"), 0o755); err != nil {
			return err
		}
		var err error
		if g.Ports, err = ranks.Lease(or(state, "/run/berth"), count); err != nil {
			return fmt.Errorf("ports for the gang: %w", err)
		}
		first = g.Ports.First
	}
	for i := range g.Worlds {
		w := &g.Worlds[i]
		w.Port, w.Rendezvous = first, len(w.Ranks) > 1 && g.Network != "host" // where everybody would reach it
		first += ranks.Ports(len(w.Ranks))
		if w.Rendezvous {
			g.Stores = append(g.Stores, tasks.GangStore{Port: w.RendezvousPort(), Scopes: w.RendezvousScopes()})
		}
	}
	return nil
}

// environmentLookup is the environment from which a name alone is passed on. A gang gets nothing from
// there that an outer launcher has left.
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

// roleOfRanks is the role of a gang that -n asks for.
const roleOfRanks = "rank"

// readGangFile is the file, or what -n says as one.
func readGangFile(c *cli.Context) (gangfile.File, error) {
	path := c.String("gang")
	if path == "" {
		n, err := strconv.Atoi(c.String("ranks"))
		if err != nil || n < 1 || n > gangfile.MaxRanks {
			return gangfile.File{}, fmt.Errorf("-n %q is not a number of ranks from 1 to %d", c.String("ranks"), gangfile.MaxRanks)
		}
		return gangfile.File{BindGPUs: c.String("bind-gpus"), Roles: []gangfile.Role{{Name: roleOfRanks, Replicas: &n, GPUs: c.String("gpus-per-rank")}}}, nil
	}
	r, err := os.Open(path)
	if err != nil {
		return gangfile.File{}, fmt.Errorf("--gang: %w", err)
	}
	f, err := gangfile.Parse(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return f, fmt.Errorf("--gang %s: %w", path, err)
	}
	if c.IsSet("bind-gpus") {
		f.BindGPUs = c.String("bind-gpus")
	}
	dir := filepath.Dir(path)
	f.Image = resolveBeside(dir, f.Image)
	resolveVolumes(dir, f.Volumes)
	for i := range f.Roles {
		role := &f.Roles[i]
		role.Image = resolveBeside(dir, role.Image)
		resolveVolumes(dir, role.Volumes)
	}
	return f, nil
}

// resolveVolumes makes the relative sources of volumes relative to the file's directory.
func resolveVolumes(dir string, volumes []string) {
	for i, v := range volumes {
		volumes[i] = resolveBeside(dir, v)
	}
}

// resolveBeside resolves a path that begins with "./" or "../" from the file's directory.
func resolveBeside(dir, path string) string {
	if !strings.HasPrefix(path, "./") && !strings.HasPrefix(path, "../") {
		return path
	}
	if abs, err := filepath.Abs(filepath.Join(dir, path)); err == nil {
		return abs
	}
	return path
}

// readGangSettings reads what is said of the whole gang; the command line wins.
func readGangSettings(c *cli.Context, f gangfile.File, g *launcher.GangOptions) (err error) {
	if g.Name == "" {
		g.Name = f.Name
	}
	if g.Network == "" {
		g.Network = f.Network
	}
	for k, v := range f.Labels {
		if _, given := g.Labels[k]; !given {
			g.Labels = withEntry(g.Labels, k, v)
		}
	}
	if f.ShmSize != "" && !c.IsSet("shm-size") {
		if g.Shm, err = spec.ParseSize(f.ShmSize); err != nil {
			return fmt.Errorf("shm-size: %w", err)
		}
	}
	if f.Timeout != "" && !c.IsSet("timeout") {
		if g.Timeout, err = parseSeconds(f.Timeout); err != nil {
			return fmt.Errorf("timeout = %q: %w", f.Timeout, err)
		}
	}
	if f.Restart != "" && !c.IsSet("restart") {
		if g.Restart, err = tasks.ParseRestart(f.Restart); err != nil {
			return fmt.Errorf("restart: %w", err)
		}
	}
	return nil
}

// makeRanks are the ranks of one role. What they lease is added to the parts.
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

// roleOptions are those of each rank of a role: what the command line says, and over it
// what the file does.
func roleOptions(c *cli.Context, o launcher.Options, f gangfile.File, role gangfile.Role) (launcher.Options, error) {
	// These are the whole gang's.
	o.Name, o.Shm, o.CIDFile, o.Timeout, o.Restart = "", 0, "", 0, launcher.Options{}.Restart
	o.Image = or(or(role.Image, f.Image), o.Image)
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
	o.Dir, o.User = or(role.Workdir, o.Dir), or(role.User, o.User)
	o.ReadOnly, o.StopSignal = o.ReadOnly || role.ReadOnly, or(role.StopSignal, o.StopSignal)
	o.CPUs = or(role.CPUSet, o.CPUs)
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

// makeWorlds says which ranks find each other, and whose devices each of them sees.
func makeWorlds(all []launcher.Rank, parts []request.Request, f gangfile.File, network string) (found []ranks.World) {
	of := func(r launcher.Rank) string {
		if f.World == "gang" && r.Part >= 0 {
			return ""
		}
		return r.Role
	}
	members := map[string][]int{}
	for i, r := range all {
		members[of(r)] = append(members[of(r)], i)
	}
	for _, first := range all {
		in := members[of(first)]
		if in == nil {
			continue // it was dealt with
		}
		delete(members, of(first))
		w := ranks.World{Apart: f.BindGPUs == "rank" || hasSlices(all, parts, in)}
		addMembers(&w, all, in, network)
		for n, i := range in {
			all[i].World, all[i].InWorld = len(found), n
		}
		found = append(found, w)
	}
	return found
}

// hasSlices says whether a world has MIG slices. A CUDA process can use only one, so a rank
// needs to see its own only.
func hasSlices(all []launcher.Rank, parts []request.Request, in []int) bool {
	return slices.ContainsFunc(in, func(i int) bool { return all[i].Part >= 0 && parts[all[i].Part].Profile() != "" })
}

// addMembers says who is in a world, and whose devices each of them sees.
func addMembers(w *ranks.World, all []launcher.Rank, in []int, network string) {
	switch network {
	case "none":
		w.Interface = "lo"
	case "host":
		w.Shared = true
	default:
		w.Interface = "eth0"
	}
	for _, i := range in {
		r := &all[i]
		w.Ranks = append(w.Ranks, ranks.Rank{Host: r.Role + "-" + strconv.Itoa(r.Index), Role: r.Role, Index: r.Index})
		if r.Part < 0 {
			continue
		}
		r.Sees = []int{r.Part}
		if w.Apart {
			continue
		}
		for _, k := range in {
			if all[k].Part >= 0 && k != i {
				r.Sees = append(r.Sees, all[k].Part)
			}
		}
		slices.Sort(r.Sees)
	}
}

// addNICs adds the NICs that flag or file ask for; for the network rdma that is auto.
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
