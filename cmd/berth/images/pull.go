package images

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// PullCommand is berth pull.
func PullCommand() *cli.Command {
	return &cli.Command{
		Name:      "pull",
		Usage:     "pull images from registries",
		ArgsUsage: "NAME…",
		Description: "Credentials are those of berth login, docker login and podman login. An interrupted pull is resumed; layers\n" +
			"that are already stored aren't pulled again.",
		OnUsageError: verb.WrongUsage,
		Action:       pullImages,
		Flags: []cli.Flag{
			backend.PlatformFlag(),
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only the names"},
		},
	}
}

func pullImages(c *cli.Context) error {
	if c.NArg() == 0 {
		return verb.WrongCommandLine(c, "pull takes names of images: berth pull debian:13")
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	if err := verb.NeedTaskRoot(); err != nil {
		return err
	}
	program, err := backend.ChooseEngine(c, conf)
	if err == nil && program == nil {
		program, err = backend.NewFetcher(c, conf, backend.ImageStore(conf))
	}
	if err != nil {
		return err
	}
	for _, name := range c.Args().Slice() {
		if err := image.CheckPullable(name); err != nil {
			return err
		}
	}
	for _, name := range c.Args().Slice() {
		if err != nil {
			verb.ReportError(err) // main prints the last error
		}
		if e := pullImage(c, program, backend.TrimScheme(name)); e != nil {
			if err = e; c.Err() != nil {
				return err
			}
		}
	}
	return err
}

// pullImage pulls one image with progress, and prints its full name.
func pullImage(c *cli.Context, e *backend.Engine, name string) error {
	n, err := registry.Parse(name)
	if err != nil {
		return err
	}
	req := e.Request
	req.Verb = cmp.Or(req.Verb, "pull")
	req.Image, req.Search = name, image.Search{Platform: c.String("platform"), Pull: image.Always}
	show := showPulling(n.String(), c.Bool("quiet"))
	var pulled engine.Pulled
	err = e.Call(c.Context, req, &pulled, show.showProgress)
	show.all = pulled.Layers
	show.showEnd(err)
	if err == nil {
		fmt.Println(pulled.Name)
	}
	return err
}

// pullProgress shows the progress of a pull on standard error: on a terminal in one line that
// is replaced, otherwise by a line for each layer.
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
		fmt.Fprintf(os.Stderr, "layer %s: %s\n", output.ShortenDigest(now.Layer), output.FormatSize(now.LayerDone))
	case now.Waiting && time.Since(p.last) > 10*time.Second:
		p.last = time.Now()
		fmt.Fprintf(os.Stderr, "layer %s: another process pulls it\n", output.ShortenDigest(now.Layer))
	}
}

// replaceLine replaces the progress line, at most ten times a second.
func (p *pullProgress) replaceLine(now image.Progress) {
	if time.Since(p.last) < 100*time.Millisecond && !now.Ready {
		return
	}
	p.last, p.shown = time.Now(), true
	rate := float64(p.bytes) / max(time.Since(p.start).Seconds(), 0.001)
	text := fmt.Sprintf(": %d of %d layers, %s of %s, %s/s", p.layers, p.all, output.FormatSize(now.Done), output.FormatSize(now.Total), output.FormatSize(int64(rate)))
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

// cutFront returns the end of a name that fits into width characters.
func cutFront(name string, width int) string {
	if len(name) <= width {
		return name
	}
	return name[len(name)-max(width, 0):]
}

func (p *pullProgress) showEnd(err error) {
	if p.shown {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	if err != nil || p.quiet {
		return
	}
	// After an interrupted pull, less than the image's size was read now.
	took := time.Since(p.start).Round(100 * time.Millisecond)
	if p.bytes == 0 {
		fmt.Fprintf(os.Stderr, "%s: already stored, with %s\n", p.name, output.FormatCount(p.all, "layer"))
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %s, %s in %s\n", p.name, output.FormatCount(p.all, "layer"), output.FormatSize(p.bytes), took)
}
