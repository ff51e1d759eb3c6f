// Package waiting is shared by the verbs that take a lease: it has the help about requests, --wait and --no-wait, and
// prints to standard error what a request waits for.
package waiting

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// RequestHelp is the help about requests, for each verb that takes one.
const RequestHelp = `REQUEST is one of
  2                two GPUs, any model
  h100:2           two whose model matches
  1g.10gb:2        two MIG slices of that profile
  all              every GPU
  0,3              these, by index, UUID or PCI address; one alone: device=0
  2,mem>=40G       a condition
  2,nics=auto      and the NICs near them; or a count, or names: nics=mlx5_0+mlx5_3`

// waitTime is the value of --wait, a flag with an optional duration.
type waitTime struct {
	set   bool
	limit time.Duration // negative means for ever
}

func (p *waitTime) IsBoolFlag() bool { return true }

func (p *waitTime) String() string {
	if p == nil || !p.set {
		return ""
	}
	return p.limit.String()
}

func (p *waitTime) Set(s string) error {
	p.set = true
	switch s {
	case "true":
		p.limit = -1
		return nil
	case "false":
		p.limit = 0
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return errors.New(`give a duration such as 30s, 10m or 2h, or --wait alone`)
	}
	p.limit = d
	return nil
}

// Flags returns --wait and --no-wait.
func Flags() []cli.Flag {
	return []cli.Flag{
		&cli.GenericFlag{Name: "wait", Usage: "wait in the queue until the devices are free, or with --wait=`DURATION` at most that long", Value: &waitTime{}},
		&cli.BoolFlag{Name: "no-wait", Usage: "fail at once when they are busy (the default)"},
	}
}

// Limit returns how long to wait for devices: 0 means not at all, a negative value for ever.
func Limit(c *cli.Context) time.Duration {
	p, ok := c.Generic("wait").(*waitTime)
	if !ok || !p.set {
		return 0
	}
	return p.limit
}

// CheckFlags refuses --wait together with --no-wait, and a first argument that was meant as
// the duration of --wait.
func CheckFlags(c *cli.Context) error {
	p, ok := c.Generic("wait").(*waitTime)
	if c.Bool("no-wait") && Limit(c) != 0 {
		return verb.WrongCommandLine(c, "--wait and --no-wait contradict each other")
	}
	first := c.Args().First()
	// A bare number is taken for seconds in berth run. In berth alloc it is the request.
	if c.Command.Name == "run" && first != "" && strings.Trim(first, "0123456789") == "" {
		first += "s"
	}
	if _, err := time.ParseDuration(first); err != nil || !ok || p.limit >= 0 {
		return nil
	}
	if _, err := os.Stat(c.Args().First()); err == nil {
		return nil // an image of that name
	}
	return verb.WrongCommandLine(c, fmt.Sprintf("the duration of --wait is attached with =: --wait=%s", first))
}

// waitLines decides which changes of what a request waits for are printed: the first, and then at most
// one a minute, because with many waiting requests each change concerns all of them.
type waitLines struct {
	last    string
	printed time.Time
}

const waitLineInterval = time.Minute

func (w *waitLines) isDue(text string, now time.Time) bool {
	if text == w.last || w.last != "" && now.Sub(w.printed) < waitLineInterval {
		return false
	}
	w.last, w.printed = text, now
	return true
}

// NewWaitPrinter returns a function that prints to standard error what a request waits for,
// see waitLines.
func NewWaitPrinter(since time.Time) func(ledger.BusyError) {
	var lines waitLines
	return func(b ledger.BusyError) {
		var who []string
		for _, l := range b.Holders {
			who = append(who, fmt.Sprintf("%s has GPU %s", output.FormatHolder(l.Owner), output.JoinIndexes(l.Devices)))
		}
		for _, o := range b.Occupied {
			who = append(who, o.String())
		}
		text := fmt.Sprintf("waiting for %s: %d of %d free", b.Request, b.Free, b.Total)
		if b.Ahead > 0 {
			text += fmt.Sprintf(", %d ahead in the queue", b.Ahead)
		}
		if len(who) > 0 {
			text += "; " + strings.Join(who, ", ")
		}
		now := time.Now()
		if !lines.isDue(text, now) {
			return
		}
		if now.Sub(since) >= time.Second {
			text += "; waited " + output.FormatAge(since, now)
		}
		verb.PrintError(text)
	}
}

// NewRemarkPrinter returns a function that prints urgent remarks (such as limits that are too
// low for NICs) to standard error. It prints only once, because all ranks of a gang have
// the same remarks.
func NewRemarkPrinter() func(removed []berth.Removal) {
	var once sync.Once
	return func(removed []berth.Removal) {
		urgent := slices.DeleteFunc(slices.Clone(removed), func(r berth.Removal) bool { return !r.Urgent })
		if len(urgent) == 0 {
			return
		}
		once.Do(func() {
			for _, r := range urgent {
				verb.PrintError(r.Name)
			}
		})
	}
}
