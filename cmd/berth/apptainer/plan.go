package apptainer

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/username"
	"github.com/berth-gpu/berth/internal/userns"
)

// plan is what the command line and the environment ask for.
type plan struct {
	verb  string
	image string // as it was given
	// content is that of an image of the store, nil for others.
	content *content
	words   []string // behind the image
	// instance is the name of the instance that starts, or whose process the command becomes: joins says which. "" means neither.
	instance string
	joins    bool
	user     account
	groups   []int // of the host
	home     homeDir
	// callerCwd is the caller's working directory, "" if it was removed, and cwd the command's.
	callerCwd, cwd string
	// mustCwd: the working directory is the command line's and not the caller's.
	mustCwd   bool
	contained bool
	spaces    namespaces
	init      string // this program's path, if it is to be the container's first process
	fakeroot  bool
	scratch   []string
	workdir   string
	opened    workDirs
	writes    writes
	without   []string // names of mounts that are left out
	binds     []specs.Mount
	dns       []string
	variables variables
	app       string
	shell     string
}

// account is this user's line of passwd(5).
type account struct{ name, gecos, dir, shell string }

// homeDir is the home directory.
type homeDir struct {
	outside, inside string
	chosen          bool // by --home
}

// newPlan reads the command line. devices says whether there will be a lease.
func newPlan(c *cli.Context, devices bool) (*plan, error) {
	p := &plan{
		verb: c.Command.Name, groups: readGroups(), image: c.Args().First(), words: c.Args().Tail(),
		contained: isOn(c, "contain") || containsAll(c),
		without:   splitWords(c, "no-mount"), app: readText(c, "app"), shell: readText(c, "shell"),
	}
	if os.Getenv(instanceVariable) != "" && len(p.words) > 0 {
		p.instance, p.words = p.words[0], p.words[1:]
	}
	if len(p.words) > 0 && p.words[0] == "--" {
		p.words = p.words[1:]
	}
	for _, name := range p.without {
		if !path.IsAbs(name) && !slices.Contains(namedMounts(), name) && !isFirstProcess() { // the process outside has said it
			verb.PrintError(fmt.Sprintf("--no-mount %s: there is no such mount: the names are %s", name, strings.Join(namedMounts(), ", ")))
		}
	}
	p.user = findAccount()
	p.fakeroot = isOn(c, "fakeroot")
	if p.fakeroot {
		p.user.name, p.user.shell = "root", "/bin/sh"
	}
	p.scratch, p.workdir = splitWords(c, "scratch"), readText(c, "workdir")
	var err error
	if p.dns, err = readAddresses(c); err != nil {
		return nil, err
	}
	if p.spaces, err = chooseNamespaces(c); err != nil {
		return nil, err
	}
	p.spaces.pid = p.spaces.pid || p.instance != ""
	if p.spaces.pid && (p.instance != "" || !isOn(c, "no-init") && !isOn(c, "compat")) {
		if p.init, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	if p.callerCwd, err = os.Getwd(); err != nil { // it was removed
		p.callerCwd = ""
	}
	p.cwd = cmp.Or(p.callerCwd, p.user.dir)
	if isOn(c, "no-home") || path.Clean(p.user.dir) == "/" && readText(c, "home") == "" {
		p.without = append(p.without, "home")
	}
	if p.home, err = chooseHome(readText(c, "home"), p.user.dir); err != nil {
		return nil, err
	}
	if p.fakeroot && !p.home.chosen {
		p.home.inside = "/root"
	}
	if p.contained {
		p.cwd = p.home.inside
	}
	if p.writes, err = chooseWrites(c); err != nil {
		return nil, err
	}
	if dir := readText(c, "pwd"); dir != "" {
		p.cwd, p.mustCwd = dir, true
	}
	if err := p.readBinds(c); err != nil {
		return nil, err
	}
	p.variables, err = readVariables(c, !p.needsFirstProcess())
	if devices { // the device nodes say what there is
		p.variables.host = slices.DeleteFunc(p.variables.host, func(kv string) bool { return strings.HasPrefix(kv, "CUDA_VISIBLE_DEVICES=") })
	}
	return p, err
}

// groupsVariable is the environment variable by which the process inside knows the user's groups: its user namespace has only one.
const groupsVariable = "BERTH_GROUPS"

// formatGroups returns the value of groupsVariable.
func formatGroups() string {
	groups, _ := os.Getgroups() // none
	return strings.Trim(fmt.Sprint(groups), "[]")
}

// readGroups returns the groups of this process's user, the first one first.
func readGroups() []int {
	all := []int{os.Getgid()}
	for _, word := range strings.Fields(cmp.Or(os.Getenv(groupsVariable), formatGroups())) {
		if id, err := strconv.Atoi(word); err == nil && !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// findAccount finds the account of the user outside of this process's user namespace.
func findAccount() account {
	uid := userns.OuterUID()
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil { // a user of a directory service
		return account{username.Find(uid), "", cmp.Or(os.Getenv("HOME"), "/"), "/bin/sh"}
	}
	return account{u.Username, u.Name, u.HomeDir, cmp.Or(os.Getenv("SHELL"), "/bin/bash")}
}

// chooseHome returns the home directory of --home SRC[:DST].
func chooseHome(words, own string) (homeDir, error) {
	if words == "" {
		return homeDir{own, own, false}, nil
	}
	outside, inside, found := strings.Cut(words, ":")
	if !found {
		inside = outside
	}
	if !path.IsAbs(outside) || !path.IsAbs(inside) || path.Clean(inside) == "/" {
		return homeDir{}, fmt.Errorf("--home %s: a home directory is an absolute path below /", words)
	}
	return homeDir{outside, path.Clean(inside), true}, nil
}

// namedMounts are the names that --no-mount takes besides paths. Mounts of hostfs are never made.
func namedMounts() []string {
	return []string{"proc", "sys", "dev", "devpts", "tmp", "home", "cwd", "hostfs", "bind-paths"}
}

// readAddresses reads the name servers of --dns.
func readAddresses(c *cli.Context) ([]string, error) {
	all := splitWords(c, "dns")
	for _, word := range all {
		if _, err := netip.ParseAddr(word); err != nil {
			return nil, fmt.Errorf("--dns %s: it is no IP address", word)
		}
	}
	return all, nil
}

// readBinds reads --bind, --mount, and their variables.
func (p *plan) readBinds(c *cli.Context) error {
	words := splitWords(c, "bind")
	for _, name := range []string{"APPTAINER_BIND", "SINGULARITY_BIND", "APPTAINER_BINDPATH", "SINGULARITY_BINDPATH"} {
		words = append(words, splitAtCommas(os.Getenv(name))...)
	}
	words = joinOptions(words)
	for _, w := range words {
		m, err := parseBind(w)
		if err != nil {
			return err
		}
		p.addBind(m)
	}
	for _, w := range append(c.StringSlice("mount"), strings.FieldsFunc(readVariable("MOUNT"), func(r rune) bool { return r == '\n' })...) {
		m, err := parseMount(w)
		if err != nil {
			return err
		}
		p.addBind(m)
	}
	return nil
}

// addBind adds a bind mount. Of several at one destination the first is made.
func (p *plan) addBind(m specs.Mount) {
	if !slices.ContainsFunc(p.binds, func(o specs.Mount) bool { return o.Destination == m.Destination }) {
		p.binds = append(p.binds, m)
	}
}

// bindOptions are the options of a bind mount, which commas separate, as they separate bind mounts.
func bindOptions() []string { return []string{"ro", "rw"} }

// joinOptions puts options that belong to the word before them back there.
func joinOptions(words []string) (all []string) {
	for _, w := range words {
		if slices.Contains(bindOptions(), w) && len(all) > 0 && strings.Count(all[len(all)-1], ":") == 2 {
			all[len(all)-1] += "," + w
			continue
		}
		all = append(all, w)
	}
	return all
}

// parseBind reads SRC[:DST[:OPTIONS]].
func parseBind(word string) (specs.Mount, error) {
	parts := strings.Split(word, ":")
	if len(parts) > 3 || parts[0] == "" {
		return specs.Mount{}, fmt.Errorf("--bind %s is not SRC[:DST[:OPTIONS]]", word)
	}
	target := parts[0]
	if len(parts) > 1 && parts[1] != "" {
		target = parts[1]
	}
	var options []string
	if len(parts) == 3 {
		options = strings.Split(parts[2], ",")
	}
	return newBind("--bind "+word, parts[0], target, options)
}

// parseMount reads type=bind,src=SRC,dst=DST[,ro].
func parseMount(word string) (specs.Mount, error) {
	fields, err := csv.NewReader(strings.NewReader(word)).Read()
	if err != nil {
		return specs.Mount{}, fmt.Errorf("--mount %s: %w", word, err)
	}
	source, target := "", ""
	var options []string
	for _, f := range fields {
		key, value, _ := strings.Cut(f, "=")
		switch key {
		case "type":
			if value != "bind" {
				return specs.Mount{}, fmt.Errorf("--mount %s: there is only type=bind", word)
			}
		case "src", "source":
			source = value
		case "dst", "destination", "target":
			target = value
		case "ro", "readonly":
			options = append(options, "ro")
		default:
			return specs.Mount{}, fmt.Errorf("--mount %s: %q is not known: there are type, src, dst and ro", word, key)
		}
	}
	if source == "" || target == "" {
		return specs.Mount{}, fmt.Errorf("--mount %s: src and dst are needed", word)
	}
	return newBind("--mount "+word, source, target, options)
}

func newBind(flag, source, target string, options []string) (specs.Mount, error) {
	for _, o := range options {
		if !slices.Contains(bindOptions(), o) {
			return specs.Mount{}, fmt.Errorf("%s: option %q is not known: there are ro and rw", flag, o)
		}
	}
	switch path.Clean(target) {
	case "/":
		return specs.Mount{}, fmt.Errorf("%s: nothing can be mounted over the container's root", flag)
	case "/dev":
		return specs.Mount{}, fmt.Errorf("%s: a container has a /dev of its own; files of the host's can be bound in it, such as /dev/fuse", flag)
	}
	if !path.IsAbs(target) {
		return specs.Mount{}, fmt.Errorf("%s: %s is not an absolute path in the container", flag, target)
	}
	source, err := filepath.Abs(source)
	if err != nil {
		return specs.Mount{}, fmt.Errorf("%s: %w", flag, err)
	}
	if _, err := os.Stat(source); err != nil {
		return specs.Mount{}, fmt.Errorf("%s: %w", flag, err)
	}
	return bindRecursively(source, path.Clean(target), append([]string{"nosuid", "nodev"}, options...)...), nil
}

// variables are environment variables for the container.
type variables struct {
	host     []string // the host's
	prefixed []string // of APPTAINERENV_NAME
	file     string   // lines of shell
	flags    []string // of --env
	eval     bool     // values of prefixed and flags are expanded in the container
	clean    bool     // without those of the host
}

// maxEnvFile bounds the file of --env-file, in bytes.
const maxEnvFile = 1 << 20

// readVariables reads the flags and the environment. readsFile says whether it reads the file of --env-file, which may be a pipe: only one process can.
func readVariables(c *cli.Context, readsFile bool) (v variables, err error) {
	v.eval = !isOn(c, "no-eval") && !isOn(c, "compat")
	v.clean = isOn(c, "cleanenv") || containsAll(c)
	set := func(list []string, name, value string) []string {
		if name == "HOME" {
			if isFirstProcess() {
				return list // the process outside has said it
			}
			verb.PrintError("HOME isn't set by a variable: --home chooses the home directory")
			return list
		}
		list = slices.DeleteFunc(list, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		return append(list, name+"="+value)
	}
	for _, prefix := range []string{"SINGULARITYENV_", "APPTAINERENV_"} { // the later one wins
		for _, kv := range os.Environ() {
			name, value, _ := strings.Cut(kv, "=")
			if name, ok := strings.CutPrefix(name, prefix); ok && verb.IsVariableName(name) {
				v.prefixed = set(v.prefixed, name, value)
			}
		}
	}
	if file := readText(c, "env-file"); file != "" && readsFile {
		data, err := readFile(file, maxEnvFile)
		if err != nil {
			return v, fmt.Errorf("--env-file: %w", err)
		}
		v.file = string(data)
	}
	for _, kv := range joinValues(c.StringSlice("env")) {
		name, value, found := strings.Cut(kv, "=")
		if !found || !verb.IsVariableName(name) {
			return v, verb.UsageError{Err: fmt.Errorf("--env %s: a variable is NAME=VALUE", kv)}
		}
		v.flags = set(v.flags, name, value)
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if isPassed(name, v.clean) && verb.IsVariableName(name) {
			v.host = append(v.host, kv)
		}
	}
	return v, nil
}

// readFile reads a file, which may be a pipe, of at most limit bytes.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, err
}

// joinValues splits --env A=1,B=2 at commas that begin a new variable.
func joinValues(words []string) (all []string) {
	for _, w := range words {
		for i, part := range strings.Split(w, ",") {
			if name, _, found := strings.Cut(part, "="); i > 0 && (!found || !verb.IsVariableName(name)) {
				all[len(all)-1] += "," + part
				continue
			}
			all = append(all, part)
		}
	}
	return all
}

// isPassed reports whether a variable of the host's is passed on. Source: apptainer(1) 1.4 as it behaves.
func isPassed(name string, clean bool) bool {
	if clean {
		return slices.Contains([]string{"TERM", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "FTP_PROXY"}, name)
	}
	for _, prefix := range []string{"APPTAINERENV_", "SINGULARITYENV_", "BERTH_"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return !slices.Contains([]string{"HOME", "PATH", "PS1", "PWD", "OLDPWD", "_", "LD_LIBRARY_PATH", "PROMPT_COMMAND", "APPTAINER_SHELL", "APPTAINER_APPNAME"}, name)
}
