package setup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/cdi/menu"
	"github.com/berth-gpu/berth/cdi/registry"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu"
)

func cdiGenerateCommand() *cli.Command {
	return &cli.Command{
		Name:  "generate",
		Usage: "write the specs of berth's devices",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "nvidia", Usage: "also offer NVIDIA's names, nvidia.com/gpu=…"},
			&cli.BoolFlag{Name: "replace", Usage: "rename other specs of nvidia.com/gpu; berth cdi remove restores them"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write into the directory `DIR`, or with - to the standard output (default: the first of host.cdi)"},
		},
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if err := verb.CheckNoArguments(c); err != nil {
				return err
			}
			if c.Bool("replace") && !c.Bool("nvidia") {
				return verb.WrongCommandLine(c, "--replace goes with --nvidia")
			}
			if err := verb.NeedHost(); err != nil {
				return err
			}
			conf, err := verb.LoadConfig(c)
			if err != nil {
				return err
			}
			node, err := berth.Open(conf)
			if err != nil {
				return err
			}
			inv, err := node.Inventory(c.Context)
			if err != nil {
				return err
			}
			m := defaultMenu(conf)
			if c.String("output") != "" {
				m.Dir = c.String("output")
			}
			if c.Bool("nvidia") {
				m.Kinds = append(m.Kinds, menu.KindNVIDIA)
				if err := moveOtherSpecs(conf, c.Bool("replace")); err != nil {
					return err
				}
			}
			if m.Dir == "-" {
				return printMenu(os.Stdout, conf, inv, m.Kinds)
			}
			if m.Dir, err = filepath.Abs(m.Dir); err != nil {
				return err
			}
			paths, err := berth.WriteMenu(c.Context, conf, inv, m)
			for _, path := range paths {
				fmt.Println(path)
			}
			return err
		},
	}
}

// defaultMenu returns the menu that berth cdi generate writes without flags.
func defaultMenu(conf berth.Config) berth.Menu {
	m := berth.Menu{Kinds: []string{menu.KindGPUs, menu.KindWith}}
	if len(conf.Host.CDI) > 0 {
		m.Dir = conf.Host.CDI[0]
	}
	return m
}

func printMenu(w io.Writer, conf berth.Config, inv gpu.Inventory, kinds []string) error {
	for _, kind := range kinds {
		data, err := berth.MenuSpec(conf, inv, kind)
		if err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// replacedSuffix is appended to the names of replaced specs. Engines don't read such files.
const replacedSuffix = ".replaced-by-berth"

// moveOtherSpecs renames the specs of others that define NVIDIA's devices, because engines
// refuse a device that two specs define. Without replace such a spec is an error.
func moveOtherSpecs(conf berth.Config, replace bool) error {
	for _, path := range otherSpecs(registry.Read(conf.Host.CDI), conf.Host.CDI) {
		if !replace {
			return fmt.Errorf("%s defines %s already, and engines refuse a device of two specs; --replace renames it", path, menu.KindNVIDIA)
		}
		if err := os.Rename(path, path+replacedSuffix); err != nil {
			return fmt.Errorf("rename CDI spec: %w", err)
		}
		fmt.Printf("%s is now %s\n", path, path+replacedSuffix)
	}
	return nil
}

// otherSpecs returns the paths of specs of NVIDIA's devices that berth hasn't written.
func otherSpecs(r foreign.Registry, dirs []string) []string {
	var paths []string
	add := func(path string) {
		if !slices.Contains(paths, path) && filepath.Base(path) != menu.FileName(menu.KindNVIDIA) {
			paths = append(paths, path)
		}
	}
	for _, s := range r.Specs {
		if s.Kind == menu.KindNVIDIA {
			add(s.Path)
		}
	}
	// A spec whose devices all conflict with another's is among the problems.
	for _, p := range r.Problems {
		if s, err := registry.Validate(p.Path); err == nil && s.Kind == menu.KindNVIDIA && slices.Contains(dirs, filepath.Dir(p.Path)) {
			add(p.Path)
		}
	}
	return paths
}

func cdiRemoveCommand() *cli.Command {
	return &cli.Command{
		Name:         "remove",
		Usage:        "remove berth's specs, and restore the specs that they replaced",
		OnUsageError: verb.WrongUsage,
		Action: verb.OnHost(func(c *cli.Context, conf berth.Config) error {
			if err := berth.RemoveMenu(c.Context, conf); err != nil {
				return err
			}
			for _, dir := range conf.Host.CDI {
				moved, err := filepath.Glob(filepath.Join(dir, "*"+replacedSuffix))
				if err != nil {
					return err
				}
				for _, path := range moved {
					if err := restoreSpec(path, strings.TrimSuffix(path, replacedSuffix)); err != nil {
						return err
					}
				}
			}
			return nil
		}),
	}
}

// restoreSpec renames a replaced spec back, unless there is a new spec of that name.
func restoreSpec(from, to string) error {
	err := os.Link(from, to)
	switch {
	case errors.Is(err, os.ErrExist):
		fmt.Fprintf(os.Stderr, "berth: %s stays, because there is a new %s\n", from, to)
		return nil
	case err != nil:
		return fmt.Errorf("restore CDI spec: %w", err)
	}
	fmt.Printf("%s is restored\n", to)
	return os.Remove(from)
}
