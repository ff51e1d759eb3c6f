package run

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/gang/gangfile"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// roleOfRanks is the role of a gang that -n asks for.
const roleOfRanks = "rank"

// readGangFile reads the file of --gang, or returns the equivalent of -n.
func readGangFile(c *cli.Context) (gangfile.File, error) {
	path := c.String("gang")
	if path == "" {
		n, err := strconv.Atoi(c.String("ranks"))
		if err != nil || n < 1 || n > gangfile.MaxRanks {
			return gangfile.File{}, fmt.Errorf("-n %q is not a number of ranks from 1 to %d", c.String("ranks"), gangfile.MaxRanks)
		}
		return gangfile.File{BindGPUs: c.String("bind-gpus"), Roles: []gangfile.Role{{Name: roleOfRanks, Replicas: &n, GPUs: c.String("gpus-per-rank")}}}, nil
	}
	r, err := verb.OpenInput(c.Context, path)
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

// readGangSettings reads the settings of the gang as a whole. Those of the command line
// replace those of the file.
func readGangSettings(c *cli.Context, f gangfile.File, g *launcher.GangOptions) (err error) {
	if g.Name == "" {
		g.Name = f.Name
	}
	if g.Network == "" {
		g.Network = f.Network
	}
	for k, v := range f.Labels {
		if _, given := g.Labels[k]; !given {
			g.Labels = addEntry(g.Labels, k, v)
		}
	}
	if f.ShmSize != "" && !c.IsSet("shm-size") {
		if g.Shm, err = spec.ParseSize(f.ShmSize); err != nil {
			return fmt.Errorf("shm-size: %w", err)
		}
	}
	if f.Timeout != "" && !c.IsSet("timeout") {
		if g.Timeout, err = spec.ParseTime(f.Timeout); err != nil {
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

// nameFileInError adds the name of the gang's file to an error.
func nameFileInError(c *cli.Context, err error) error {
	if !c.IsSet("gang") {
		return err
	}
	return fmt.Errorf("--gang %s: %w", c.String("gang"), err)
}

// nameRoleInError adds the file and the role to an error, unless the gang comes from -n.
func nameRoleInError(c *cli.Context, role gangfile.Role, err error) error {
	if !c.IsSet("gang") {
		return err
	}
	return nameFileInError(c, fmt.Errorf("role %q: %w", role.Name, err))
}
