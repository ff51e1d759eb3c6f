package run

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/verb"
)

// refuseOtherTools refuses command lines whose short flags mean something else in Slurm or Apptainer. berth would take
// a word for an image that isn't meant to be one, and pull it.
func refuseOtherTools(c *cli.Context) error {
	if word := c.Args().First(); c.Bool("tty") && othertools.IsSlurmTime(word) {
		return verb.NewUsageError(c, word+" is no image: -t gives the task a terminal, and --timeout 2h ends it after that time (Slurm's -t)")
	}
	if word := c.Args().First(); c.Bool("detach") && othertools.IsSlurmDependency(word) {
		return verb.NewUsageError(c, word+" is no image: berth wait TASK && berth run -d IMAGE COMMAND starts one task after another (Slurm's -d)")
	}
	for _, flag := range []string{"workdir", "user", "publish", "label", "volume"} {
		for _, value := range append(c.StringSlice(flag), c.String(flag)) {
			if why := othertools.ExplainTakenImage(flag, value); why != "" {
				return verb.NewUsageError(c, why)
			}
		}
	}
	if dir := c.String("workdir"); dir != "" && !strings.Contains(dir, "/") {
		return verb.NewUsageError(c, fmt.Sprintf("--workdir %s: the directory is an absolute path, as in -w /workspace; --nodelist (Slurm's -w) isn't needed, for berth is for this server alone", dir))
	}
	return nil
}
