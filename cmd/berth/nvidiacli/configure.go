package nvidiacli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/hook/inject"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/mounttree"
	"github.com/berth-gpu/berth/internal/userns"
)

// runConfigure mounts the lease's devices and the driver's files below ROOTFS.
func runConfigure(c *cli.Context) error {
	path, err := checkRoot(c)
	if err != nil {
		return err
	}
	conf, err := loadConfig(c)
	if err != nil {
		return err
	}
	ofUser := os.Geteuid() != 0 || userns.IsInside()
	if ofUser {
		dir, err := os.MkdirTemp("", "berth-")
		if err != nil {
			return err
		}
		defer removeState(dir)
		conf.UserData, conf.UserState = dir, dir
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	lease, err := findLease(c, node, conf.State)
	if err != nil || !c.IsSet("device") {
		return err
	}
	if ofUser {
		if err := mountState(conf.UserData); err != nil {
			return err
		}
	}
	// Without what is mounted below it: where a launcher has bound directories of the host there, links of the image can lead to them.
	root, err := mounttree.Clone(path, false)
	if err != nil {
		return err
	}
	defer root.Close() // an O_PATH descriptor
	spec := &specs.Spec{Root: &specs.Root{Path: path}, Process: &specs.Process{Env: driverVariables(c)}}
	all, _, err := node.Compose(c.Context, spec, &lease, root)
	if err != nil {
		return err
	}
	if err := inject.Apply(c.Context, inject.Container{PID: c.Int("pid"), Outside: node.FindParent(lease), Root: path, Spec: spec}, selectFiles(all)); err != nil {
		return fmt.Errorf("configure %s: %w", path, err)
	}
	return nil
}

// maxState bounds what a user's container gets from berth but from files of root's, in bytes.
const maxState = 64 << 20

// mountState mounts a file system in memory for what a user's container gets from berth but from files of root's. A launcher may pass on neither
// the user's home nor other variables.
func mountState(dir string) error {
	tree, err := mounttree.NewTmpfs(maxState, 0o755)
	if err != nil {
		return err
	}
	defer tree.Close() // attached by then, or of no use
	at, err := inroot.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer at.Close() // an O_PATH descriptor
	return mounttree.Attach(tree, at)
}

// removeState unmounts what mountState has mounted, and removes the directory. The container keeps what is mounted from there.
func removeState(dir string) {
	_ = unix.Unmount(dir, unix.MNT_DETACH) // it may not be mounted
	_ = os.Remove(dir)                     // it is empty
}

// selectFiles returns the edits of a container's files. The rest is the launcher's: process, limits, network and cgroup.
func selectFiles(all edits.Edits) edits.Edits {
	return edits.Edits{Nodes: all.Nodes, Mounts: all.Mounts, MaskedPaths: all.MaskedPaths, ReadonlyPaths: all.ReadonlyPaths}
}

// driverVariables are the environment variables by which a container says what it needs of the driver.
func driverVariables(c *cli.Context) (env []string) {
	var names []string
	for _, f := range append(capabilityFlags(), &cli.BoolFlag{Name: "compat32"}) {
		if c.Bool(f.Names()[0]) {
			names = append(names, f.Names()[0])
		}
	}
	env = append(env, "NVIDIA_DRIVER_CAPABILITIES="+strings.Join(names, ","))
	for i, condition := range c.StringSlice("require") {
		env = append(env, fmt.Sprintf("NVIDIA_REQUIRE_%d=%s", i, condition))
	}
	return env
}

// checkRoot refuses what can't be the root of a container.
func checkRoot(c *cli.Context) (string, error) {
	root := c.Args().First()
	if c.NArg() != 1 {
		return "", verb.WrongCommandLine(c, "configure takes the container's root directory")
	}
	if !filepath.IsAbs(root) || filepath.Clean(root) == "/" {
		return "", verb.WrongCommandLine(c, fmt.Sprintf("%q is not the root directory of a container", root))
	}
	return root, nil
}
