package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
)

// onNode is the action of a verb that takes no argument and looks at the node.
func onNode(action func(*cli.Context, *berth.Node) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArguments(c); err != nil {
			return err
		}
		node, err := open(c)
		if err != nil {
			return err
		}
		return action(c, node)
	}
}

// onHost is the action of a verb that takes no argument and changes what is the host's.
func onHost(action func(*cli.Context, berth.Config) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArguments(c); err != nil {
			return err
		}
		conf, err := config(c)
		if err != nil {
			return err
		}
		if err := needHost(); err != nil {
			return err
		}
		return action(c, conf)
	}
}

// open reads the configuration.
func open(c *cli.Context) (*berth.Node, error) {
	conf, err := config(c)
	if err != nil {
		return nil, err
	}
	return berth.Open(conf)
}

func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return wrong(c, fmt.Sprintf("%s takes no argument, got %q", c.Command.Name, c.Args().First()))
	}
	return nil
}
