package verb

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/userns"
)

// OnNode returns the action of a verb that takes no arguments and reads the node.
func OnNode(action func(*cli.Context, *berth.Node) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := CheckNoArguments(c); err != nil {
			return err
		}
		node, err := OpenNode(c)
		if err != nil {
			return err
		}
		return action(c, node)
	}
}

// OnHost returns the action of a verb that takes no arguments and changes the host: it needs root.
func OnHost(action func(*cli.Context, berth.Config) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := CheckNoArguments(c); err != nil {
			return err
		}
		conf, err := LoadConfig(c)
		if err != nil {
			return err
		}
		if err := NeedHost(); err != nil {
			return err
		}
		return action(c, conf)
	}
}

// OpenNode opens the node of the configuration that the command line names.
func OpenNode(c *cli.Context) (*berth.Node, error) {
	conf, err := LoadConfig(c)
	if err != nil {
		return nil, err
	}
	return berth.Open(conf)
}

// CheckNoArguments returns an error if the verb has arguments.
func CheckNoArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return WrongCommandLine(c, fmt.Sprintf("%s takes no argument, got %q", c.Command.Name, c.Args().First()))
	}
	return nil
}

// NeedRoot returns an error unless this process is root of the host. Only root can change
// the host's device rules and cgroups.
func NeedRoot() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("this needs root, and runs as user %d: use sudo", os.Geteuid())
	}
	return NeedHost()
}

// NeedTaskRoot returns an error unless this process may act on the tasks and images of its user: as root of the host, or of a
// user namespace.
func NeedTaskRoot() error {
	if IsHelped() {
		return nil
	}
	return NeedRoot()
}

// HelperVariable is an environment variable of processes that package rootless has started in a user namespace.
const HelperVariable = "BERTH_HELPER"

// IsHelped reports whether this process acts for a user without root, as root of a user namespace. It is false in other user
// namespaces, such as those of containers.
func IsHelped() bool { return userns.IsInside() && os.Getenv(HelperVariable) != "" }

// NeedHost returns an error in a user namespace, whose uid 0 is not root of the host.
func NeedHost() error {
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return fmt.Errorf("read the user namespace: %w", err)
	}
	if !userns.IsInitial(string(ids)) {
		return errors.New("uid 0 of a user namespace is not root of the host: run berth outside of it")
	}
	return nil
}

// LoadConfig reads the configuration that the command line names. Warnings of its nodes are printed.
func LoadConfig(c *cli.Context) (berth.Config, error) { return LoadConfigFile(c.String("config")) }

// LoadConfigFile is [LoadConfig] for the file at path.
func LoadConfigFile(path string) (berth.Config, error) {
	conf, err := berth.LoadConfig(path)
	conf.Log, conf.SudoUID = NewLog(), os.Getenv("SUDO_UID")
	if IsHelped() || os.Geteuid() != 0 {
		conf.UserData, conf.UserState = userDirs()
		conf.Confined = IsHelped() // such a process can't renew the inventory
	}
	return conf, err
}

// userDirs returns the directories of a user's tasks and images. Source: the XDG Base Directory Specification.
func userDirs() (data, state string) {
	data = os.Getenv("XDG_DATA_HOME")
	if !filepath.IsAbs(data) {
		home := os.Getenv("HOME")
		if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); home == "" && err == nil {
			home = u.HomeDir
		}
		data = filepath.Join(cmp.Or(home, "/"), ".local/share")
	}
	data = filepath.Join(data, "berth")
	if state = os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(state) {
		return data, filepath.Join(state, "berth")
	}
	return data, filepath.Join(data, "run")
}
