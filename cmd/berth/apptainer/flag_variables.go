package apptainer

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

// A flag that the command line doesn't have may have an environment variable of Apptainer's. These functions return the value of either.

// isOn reports whether a switch is on.
func isOn(c *cli.Context, flag string) bool {
	if c.IsSet(flag) {
		return c.Bool(flag)
	}
	return isTrue(readFlagVariable(flag))
}

// readText returns the value of a flag, "" if it has none.
func readText(c *cli.Context, flag string) string {
	if c.IsSet(flag) {
		return c.String(flag)
	}
	return readFlagVariable(flag)
}

// splitWords returns the words of a flag that may be given several times, with commas or without.
func splitWords(c *cli.Context, flag string) (all []string) {
	given := c.StringSlice(flag)
	if !c.IsSet(flag) {
		given = []string{readFlagVariable(flag)}
	}
	for _, s := range given {
		all = append(all, splitAtCommas(s)...)
	}
	return all
}

func splitAtCommas(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}

// readFlagVariable returns the value of the variable for a flag.
func readFlagVariable(flag string) string {
	for _, name := range variablesOfFlag(flag) {
		if value := readVariable(name); value != "" {
			return value
		}
	}
	return ""
}

// variablesOfFlag returns the names of the variables for a flag, without APPTAINER_ or SINGULARITY_. The first one with a value counts.
// Source: cmd/internal/cli/action_flags.go of Apptainer.
func variablesOfFlag(flag string) []string {
	usual := strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
	switch flag {
	case "bind", "mount": // all variables and flags count: see readBinds
		return nil
	case "gpus", "wait", "no-wait", "env": // not Apptainer's, or without a variable
		return nil
	case "docker-login", "docker-username", "docker-password", "authfile", "no-https": // users set them for good, and most commands don't pull
		return nil
	case "app":
		return []string{usual, "APPNAME"}
	case "overlay":
		return []string{usual, "OVERLAYIMAGE"}
	case "scratch":
		return []string{usual, "SCRATCHDIR"}
	case "pwd":
		return []string{usual, "TARGET_PWD", "CWD", "TARGET_CWD"}
	case "pid", "ipc", "net", "uts":
		return []string{usual, "UNSHARE_" + usual}
	case "no-init":
		return []string{"NOSHIMINIT"}
	case "fusemount":
		return []string{"FUSESPEC"}
	case "pem-path":
		return []string{"ENCRYPTION_PEM_PATH"}
	case "passphrase":
		return nil // ENCRYPTION_PASSPHRASE is a passphrase, and no switch
	}
	return []string{usual}
}

// isTrue reports whether the value of a variable for a switch is a true one.
func isTrue(value string) bool {
	value = strings.ToLower(value)
	on, err := strconv.ParseBool(value)
	return err == nil && on || slices.Contains([]string{"yes", "y"}, value)
}

// readVariable returns the value of one of Apptainer's variables, which also have the older name.
func readVariable(name string) string {
	if value, ok := os.LookupEnv("APPTAINER_" + name); ok {
		return value
	}
	return os.Getenv("SINGULARITY_" + name)
}
