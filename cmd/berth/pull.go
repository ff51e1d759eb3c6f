package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// imageHelp lists the kinds of image references, for the help of every verb that takes one.
const imageHelp = `IMAGE is one of
  debian:13, registry.example/team/app@sha256:…   an image of a registry, as docker names it
  DIR, FILE                                       one of these; the kind is detected:
  dir:DIR, oci:DIR[:TAG]                          a root file system, an OCI image layout
  docker-archive:FILE[:NAME]                      what docker save and podman save write
  oci-archive:FILE[:TAG]                          an OCI image layout in a tar archive`

func pullCommand() *cli.Command {
	return &cli.Command{
		Name:      "pull",
		Usage:     "get images from their registries",
		ArgsUsage: "NAME…",
		Description: "Credentials are those of docker login and podman login. What broke off goes on where it ended;\n" +
			"layers that are here aren't read again.",
		OnUsageError: wrongUsage,
		Action:       pullImages,
		Flags: []cli.Flag{
			platformFlag(),
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the names alone"},
		},
	}
}

func platformFlag() cli.Flag {
	return &cli.StringFlag{Name: "platform", Usage: "an image for `OS/ARCH`, such as linux/arm64, instead of this machine's"}
}

// pullFlags are the flags of berth run that are about pulling.
func pullFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "pull", Usage: "pull the image `WHEN` it is missing, always, or never", Value: "missing"},
		platformFlag(),
	}
}

// readPullFlags reads pullFlags.
func readPullFlags(c *cli.Context, o *launcher.Options) (err error) {
	if o.Search.Pull, err = image.ParsePull(c.String("pull")); err != nil {
		return fmt.Errorf("--%w", err)
	}
	o.Search.Platform = c.String("platform")
	return nil
}

// registryAccess is how this user and machine reach registries: where docker, podman and
// nerdctl keep credentials and the configuration of registries.
func registryAccess(conf berth.Config) registry.Access {
	home := os.Getenv("HOME")
	under := func(dir string, names ...string) []string {
		if dir == "" {
			return nil
		}
		return []string{filepath.Join(append([]string{dir}, names...)...)}
	}
	runtime := os.Getenv("XDG_RUNTIME_DIR")
	if runtime == "" {
		runtime = filepath.Join("/run/containers", strconv.Itoa(os.Getuid()))
	} else {
		runtime = filepath.Join(runtime, "containers")
	}
	settings := os.Getenv("XDG_CONFIG_HOME")
	if settings == "" && home != "" {
		settings = filepath.Join(home, ".config")
	}
	var files []string
	if file := os.Getenv("REGISTRY_AUTH_FILE"); file != "" {
		files = append(files, file)
	}
	docker := under(os.Getenv("DOCKER_CONFIG"), "config.json")
	if docker == nil {
		docker = under(home, ".docker", "config.json")
	}
	files = append(files, docker...)
	files = append(files, filepath.Join(runtime, "auth.json"))
	files = append(files, under(settings, "containers", "auth.json")...)
	hosts := conf.Run.HostsDir
	if len(hosts) == 0 {
		hosts = slices.Concat(under(settings, "containerd", "certs.d"), under(settings, "docker", "certs.d"),
			[]string{"/etc/containerd/certs.d", "/etc/docker/certs.d", "/etc/containers/certs.d"})
	}
	return registry.Access{Credentials: files, HostDirs: hosts, Agent: "berth/" + version}
}

func imageStore(conf berth.Config) image.Store {
	return image.Store{Dir: filepath.Join(conf.Data, "images")}
}

func pullImages(c *cli.Context) error {
	if c.NArg() == 0 {
		return wrongCommandLine(c, "pull takes names of images: berth pull debian:13")
	}
	conf, err := loadConfig(c)
	if err != nil {
		return err
	}
	if err := needRoot(); err != nil {
		return err
	}
	program, err := engineOf(c, conf)
	if err == nil && program == nil {
		program, err = newFetcher(conf)
	}
	if err != nil {
		return err
	}
	for _, name := range c.Args().Slice() {
		if err != nil {
			_, line := exitStatus(err) // the last is main's to say
			printError(line)
		}
		e := image.CheckPullable(name)
		if e == nil {
			e = pullImage(c, program, trimScheme(name))
		}
		if e != nil {
			if err = e; c.Err() != nil {
				return err
			}
		}
	}
	return err
}

// pullImage pulls one image, shows how far it is, and prints its full name.
func pullImage(c *cli.Context, e *otherEngine, name string) error {
	n, err := registry.Parse(name)
	if err != nil {
		return err
	}
	req := e.request
	req.Verb = or(req.Verb, "pull")
	req.Image, req.Search = name, image.Search{Platform: c.String("platform"), Pull: image.Always}
	show := showPulling(n.String(), c.Bool("quiet"))
	var pulled engine.Pulled
	err = e.callEngine(c.Context, req, &pulled, show.showProgress)
	show.all = pulled.Layers
	show.showEnd(err)
	if err == nil {
		fmt.Println(pulled.Name)
	}
	return err
}

// imageFetcher pulls images for tasks into the store (launcher.Options.Fetch).
func imageFetcher(conf berth.Config, progress func(image.Progress)) func(context.Context, string, image.Search) error {
	return func(ctx context.Context, ref string, how image.Search) error {
		e, err := newFetcher(conf)
		if err != nil {
			return err
		}
		req := e.request
		req.Image, req.Search = trimScheme(ref), how
		return e.callEngine(ctx, req, nil, progress)
	}
}

func trimScheme(name string) string {
	const scheme = "docker://"
	if len(name) > len(scheme) && name[:len(scheme)] == scheme {
		return name[len(scheme):]
	}
	return name
}

// pullProgress shows a pull on standard error: one line that changes on a terminal, a line
// for each layer elsewhere.
type pullProgress struct {
	quiet, live bool
	start, last time.Time
	shown       bool // a progress line is on the terminal
	bytes       int64
	layers      int
	all         int
	name        string
}

func showPulling(name string, quiet bool) *pullProgress {
	live := term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb"
	return &pullProgress{quiet: quiet, live: live, start: time.Now(), name: name}
}

func (p *pullProgress) showProgress(now image.Progress) {
	p.bytes, p.all = now.Done, now.Layers
	if now.Ready {
		p.layers++
	}
	switch {
	case p.quiet:
	case p.live:
		p.replaceLine(now)
	case now.Ready && now.LayerDone > 0:
		fmt.Fprintf(os.Stderr, "layer %s: %s\n", abbreviateID(trimAlgorithm(now.Layer)), formatSize(now.LayerDone))
	case now.Waiting && time.Since(p.last) > 10*time.Second:
		p.last = time.Now()
		fmt.Fprintf(os.Stderr, "layer %s: somebody else is getting it\n", abbreviateID(trimAlgorithm(now.Layer)))
	}
}

// replaceLine replaces the progress line, at most ten times a second.
func (p *pullProgress) replaceLine(now image.Progress) {
	if time.Since(p.last) < 100*time.Millisecond && !now.Ready {
		return
	}
	p.last, p.shown = time.Now(), true
	rate := float64(p.bytes) / max(time.Since(p.start).Seconds(), 0.001)
	text := fmt.Sprintf(": %d of %d layers, %s of %s, %s/s", p.layers, p.all, formatSize(now.Done), formatSize(now.Total), formatSize(int64(rate)))
	fmt.Fprint(os.Stderr, "\r\x1b[K"+cutFront(p.name, terminalWidth()-1-len(text))+text)
}

// terminalWidth returns the width of the terminal. A longer line could not be replaced.
func terminalWidth() int {
	size, err := unix.IoctlGetWinsize(int(os.Stderr.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return 80
	}
	return int(size.Col)
}

// cutFront returns the end of a name that fits into room.
func cutFront(name string, room int) string {
	if len(name) <= room {
		return name
	}
	return name[len(name)-max(room, 0):]
}

func (p *pullProgress) showEnd(err error) {
	if p.shown {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	if err != nil || p.quiet {
		return
	}
	// Not all was read now, where an earlier pull broke off.
	took := time.Since(p.start).Round(100 * time.Millisecond)
	if p.bytes == 0 {
		fmt.Fprintf(os.Stderr, "%s: here already, with %s\n", p.name, countOf(p.all, "layer"))
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %s, %s in %s\n", p.name, countOf(p.all, "layer"), formatSize(p.bytes), took)
}

func trimAlgorithm(digest string) string {
	for i := range len(digest) {
		if digest[i] == ':' {
			return digest[i+1:]
		}
	}
	return digest
}

// formatSize prints a size as docker does, in powers of ten.
func formatSize(n int64) string {
	const kB, MB, GB = 1000, 1000 * 1000, 1000 * 1000 * 1000
	switch f := float64(n); {
	case n < kB:
		return strconv.FormatInt(n, 10) + " B"
	case n < MB:
		return fmt.Sprintf("%.0f kB", f/kB)
	case n < 10*MB:
		return fmt.Sprintf("%.1f MB", f/MB)
	case n < GB:
		return fmt.Sprintf("%.0f MB", f/MB)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/GB)
}
