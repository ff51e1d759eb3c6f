package escape

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The naive injector is a runtime wrapper that makes, on purpose, the mistakes that
// the field's injectors have made: it joins strings to paths and follows links,
// writes the loader's cache by its path, binds the image's own files, runs the
// image's programs and a hook with the image's environment, takes whatever the
// environment asks for, leaves CAP_MKNOD and whole majors open, and denies by a list.
// With --check it looks before it writes, and then uses the path again.
//
// It is the control of the experiment: an attack that doesn't work here proves
// nothing by not working on berth.

const (
	naiveWord    = "naive-injector" // the first argument that makes this program the naive injector
	naiveRequest = "naive.gpus"     // the annotation of a user's request
)

type naive struct {
	hook, runtime, bundle string
	check, only           bool
	rounds                int

	root string
	spec *specs.Spec
	ask  string
}

func naiveCommand() []string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{self, naiveWord}
}

// naiveMain takes its own arguments before "--", and those of an engine to a runtime after it.
func naiveMain(args []string) int {
	var n naive
	var patience time.Duration
	flags := flag.NewFlagSet(naiveWord, flag.ContinueOnError)
	flags.StringVar(&n.hook, "hook", "", "")
	flags.StringVar(&n.runtime, "runtime", "", "")
	flags.BoolVar(&n.check, "check", false, "")
	flags.BoolVar(&n.only, "only-prepare", false, "")
	flags.IntVar(&n.rounds, "rounds", 0, "")
	flags.DurationVar(&patience, "patience", time.Hour, "")
	if err := flags.Parse(args); err != nil {
		return 1
	}
	// Otherwise engines would wait for ever.
	time.AfterFunc(patience, func() { fmt.Fprintln(os.Stderr, "naive: it hangs"); os.Exit(124) })
	words := flags.Args()
	if n.bundle = bundleOf(words); n.bundle != "" {
		if err := n.prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "naive:", err)
			return 1
		}
	}
	if n.only {
		return 0
	}
	path, err := exec.LookPath(n.runtime)
	if err == nil {
		err = unix.Exec(path, append([]string{n.runtime}, words...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "naive:", err)
	return 1
}

// bundleOf returns the bundle of a runtime's create.
func bundleOf(words []string) string {
	if !slices.Contains(words, "create") && !slices.Contains(words, "run") {
		return ""
	}
	for i, word := range words[:len(words)-1] {
		if word == "--bundle" || word == "-b" {
			return words[i+1]
		}
	}
	return ""
}

func (n *naive) prepare() error {
	config := filepath.Join(n.bundle, "config.json")
	data, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &n.spec); err != nil {
		return err
	}
	if n.root = n.spec.Root.Path; !filepath.IsAbs(n.root) {
		n.root = filepath.Join(n.bundle, n.root)
	}
	n.ask = n.request()
	bounded, err := limitMemory()
	if err != nil {
		return err
	}
	for range max(1, n.rounds) {
		n.places()
		n.loader()
	}
	n.compat()
	if err := bounded(); err != nil {
		return err
	}
	n.devices()
	if n.spec.Hooks == nil {
		n.spec.Hooks = &specs.Hooks{}
	}
	n.spec.Hooks.CreateContainer = append(n.spec.Hooks.CreateContainer, n.hooked())
	n.spec.Hooks.CreateRuntime = append(n.spec.Hooks.CreateRuntime, specs.Hook{
		// The hook reads its standard input: crun fails a container whose hook has ended before.
		Path: "/bin/sh", Args: []string{"sh", "-c", "cat >/dev/null"}, Env: []string{"PATH=/usr/bin:/bin"},
	})
	if data, err = json.Marshal(n.spec); err != nil {
		return err
	}
	return os.WriteFile(config, data, 0o600)
}

// hooked runs a hook in the image's directory with the image's environment, as old runtimes do.
func (n *naive) hooked() specs.Hook {
	return specs.Hook{
		Path: "/bin/sh", Args: []string{"sh", "-c", `cd "$0" && exec "$1"`, n.root, n.hook},
		Env: n.spec.Process.Env,
	}
}

// limitMemory limits the memory of the naive injector.
func limitMemory() (undo func() error, err error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &was); err != nil {
		return nil, err
	}
	small := unix.Rlimit{Cur: 4 << 30, Max: was.Max}
	return func() error { return unix.Setrlimit(unix.RLIMIT_AS, &was) }, unix.Setrlimit(unix.RLIMIT_AS, &small)
}

// variable returns a variable of the container, whatever its source is.
func (n *naive) variable(name string) string {
	value := ""
	for _, v := range n.spec.Process.Env {
		if text, ok := strings.CutPrefix(v, name+"="); ok {
			value = text
		}
	}
	return value
}

// request returns the request of the user, the image, or any other source.
func (n *naive) request() string {
	for _, text := range []string{
		n.variable("NVIDIA_VISIBLE_DEVICES"), n.variable("BERTH_GPUS"), n.spec.Annotations["berth.gpus"], n.spec.Annotations[naiveRequest],
	} {
		if text != "" {
			return text
		}
	}
	if strings.Contains(n.spec.Annotations["io.kubernetes.cri-o.Labels"], "berth.gpus") {
		return "all"
	}
	if n.variable("BERTH_LEASE")+n.spec.Annotations["dev.berth.lease"] != "" {
		return "all" // a container that names a lease is believed to hold it
	}
	for _, m := range n.spec.Mounts {
		if uuid, ok := strings.CutPrefix(m.Destination, "/var/run/nvidia-container-devices/"); ok {
			return uuid
		}
	}
	return ""
}

// path returns the path on the host of a path in the container, as a joined string.
func (n *naive) path(name string) (path string, fine bool) {
	path = filepath.Join(n.root, name)
	if !n.check {
		return path, true
	}
	for p := path; p != n.root; p = filepath.Dir(p) {
		if fi, err := os.Lstat(p); err == nil && fi.Mode()&os.ModeSymlink != 0 {
			return "", false
		}
	}
	return path, true
}

// dir, file and put make mount points and files for the loader. They ignore errors.
func (n *naive) dir(name string) {
	if path, ok := n.path(name); ok {
		_ = os.MkdirAll(path, 0o755)
	}
}

func (n *naive) file(name string) {
	n.dir(filepath.Dir(name))
	if path, ok := n.path(name); ok {
		if f, err := os.OpenFile(path, os.O_CREATE|unix.O_NONBLOCK, 0o644); err == nil {
			_ = f.Close()
		}
	}
}

func (n *naive) put(name, content string) {
	if path, ok := n.path(name); ok {
		_ = os.WriteFile(path, []byte(content), 0o644)
	}
}

func (n *naive) node(name string) {
	n.dir(filepath.Dir(name))
	path, ok := n.path(name)
	if ok && unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))) != nil {
		n.file(name) // mount point of the node
	}
}

func (n *naive) link(name, target string) {
	if path, ok := n.path(name); ok {
		_ = os.Symlink(target, path)
	}
}

// places makes the mount points and nodes.
func (n *naive) places() {
	for _, name := range []string{
		"usr/local/nvidia/lib64", "usr/local/berth/nvidia", "usr/share/vulkan/icd.d", "etc/OpenCL/vendors",
		"lib/firmware/nvidia", "proc/driver/nvidia", "dev/dri/by-path",
	} {
		n.dir(name)
	}
	for _, name := range []string{"usr/bin/nvidia-smi", "run/nvidia-fabricmanager/socket"} {
		n.file(name)
	}
	for _, name := range []string{"dev/nvidia0", "dev/dri/card0"} {
		n.node(name)
	}
	n.link("usr/local/nvidia/lib64/libcuda.so", "libcuda.so.1")
}

// read takes a whole file into memory.
func (n *naive) read(name string) []byte {
	path, ok := n.path(name)
	if !ok {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil
	}
	return data
}

// loader merges the loader's cache and its configuration, and then runs the image's own ldconfig.
func (n *naive) loader() {
	cache := n.read("etc/ld.so.cache")
	names := cacheNames(cache)
	conf := n.read("etc/ld.so.conf")
	ours := n.read("etc/ld.so.conf.d/00-berth.conf")
	n.dir("etc/ld.so.conf.d")
	n.put("etc/ld.so.cache", string(cache)+strings.Join(names[:min(1, len(names))], ""))
	n.put("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n"+string(conf))
	n.put("etc/ld.so.conf.d/00-berth.conf", "/usr/local/nvidia/lib64\n"+string(ours[:0]))
	if path, ok := n.path("sbin/ldconfig"); ok {
		_ = exec.Command(path, "-r", n.root).Run()
	}
}

// cacheNames trusts the cache's header.
func cacheNames(cache []byte) (names []string) {
	const header, size = 48, 24
	if len(cache) < header || !strings.HasPrefix(string(cache), "glibc-ld.so.cache1.1") {
		return nil
	}
	number := func(at uint32) uint32 {
		return uint32(cache[at]) | uint32(cache[at+1])<<8 | uint32(cache[at+2])<<16 | uint32(cache[at+3])<<24
	}
	count := number(20)
	names = make([]string, count)
	for i := range count {
		start := number(header + i*size + 4)
		end := start
		for cache[end] != 0 {
			end++
		}
		names[i] = string(cache[start:end])
	}
	return names
}

// compat adds the image's newer libraries to the driver's: by a link with the file's own name, and
// by a bind of the file.
func (n *naive) compat() {
	files, err := filepath.Glob(filepath.Join(n.root, "usr/local/cuda/compat/libcuda.so.*"))
	if err != nil {
		return
	}
	for _, file := range files {
		data := n.read(strings.TrimPrefix(file, n.root))
		if name := soname(data); name != "" {
			_ = os.Symlink("/usr/local/cuda/compat/"+filepath.Base(file), filepath.Join(n.root, "usr/local/nvidia/lib64", name))
		}
		n.spec.Mounts = append(n.spec.Mounts, specs.Mount{
			Destination: "/usr/local/nvidia/lib64/libcuda.so.1", Source: file, Type: "bind", Options: []string{"rbind", "ro"},
		})
	}
}
