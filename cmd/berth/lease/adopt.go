package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/hostprocess"
)

// nvmlTimeout is how long adopt waits for an answer of NVML.
const nvmlTimeout = 10 * time.Second

// AdoptCommand is berth adopt.
func AdoptCommand() *cli.Command {
	return &cli.Command{
		Name:      "adopt",
		Usage:     "give a lease to a process that runs already",
		ArgsUsage: "PID [REQUEST]",
		Description: "Leases devices to the process PID and its descendants, and moves them into the lease's cgroup. The\n" +
			"lease lasts until the last of them, and of what they start, has ended. Without REQUEST the devices are\n" +
			"those that the processes use now, as NVML reports it. Children whose parent has ended are not found.\n\n" +
			"The environment of a running process can't be changed. With --export, berth adopt prints the commands\n" +
			"that set CUDA_VISIBLE_DEVICES and the other variables, for a shell that adopts itself.\n\n" +
			"Users without root adopt their own processes, by berth-broker.\n\n" + waiting.RequestHelp,
		Flags: append(waiting.Flags(),
			&cli.BoolFlag{Name: "export", Usage: "print shell commands that export the lease's environment variables"},
			&cli.BoolFlag{Name: "json", Usage: "print the lease as JSON"},
		),
		OnUsageError: verb.WrongUsage,
		Action:       runAdopt,
	}
}

func runAdopt(c *cli.Context) error {
	if err := waiting.CheckFlags(c); err != nil {
		return err
	}
	words := c.Args().Slice()
	if len(words) < 1 || len(words) > 2 {
		return verb.WrongCommandLine(c, "adopt takes the number of a process, and at most one request: berth adopt 4711 2")
	}
	if c.Bool("export") && c.Bool("json") {
		return verb.WrongCommandLine(c, "--export and --json contradict each other")
	}
	pid, err := strconv.Atoi(words[0])
	if err != nil || pid <= 0 {
		return verb.WrongCommandLine(c, fmt.Sprintf("%q is not the number of a process: berth adopt PID [REQUEST]", words[0]))
	}
	var wanted request.Request
	if len(words) == 2 {
		if wanted, err = request.Parse(words[1]); err != nil {
			return err
		}
	}
	node, err := verb.OpenNode(c)
	if err != nil {
		return err
	}
	// A wrong pid is reported before NVML is asked.
	p, err := hostprocess.Open(pid, hostprocess.AnyUser)
	if err != nil {
		return err
	}
	defer p.Close()
	used := len(words) == 1
	if used {
		if wanted, err = requestUsed(c, node, pid); err != nil {
			return err
		}
	}
	if !p.IsAlive() { // NVML has taken its time, and the number may be another process's now
		return fmt.Errorf("process %d has ended", pid)
	}
	var granted protocol.Granted
	if verb.NeedRoot() == nil {
		granted, err = adoptAsRoot(c, node, p, wanted)
	} else {
		granted, err = client.New(node.State()).Adopt(c.Context, protocol.Adopt{
			PID: pid, Request: wanted.String(), WaitSeconds: waiting.Limit(c).Seconds(),
		}, waiting.NewWaitPrinter(time.Now()))
		err = verb.NameRequest(backend.AdviseBroker(err))
	}
	if err != nil {
		return err
	}
	for _, remark := range granted.Remarks {
		verb.PrintError(remark)
	}
	return printAdopted(c, granted, !used)
}

// requestUsed returns the request for the devices that a process and its descendants use now.
func requestUsed(c *cli.Context, node *berth.Node, pid int) (r request.Request, err error) {
	inv, err := node.Inventory(c.Context)
	if err != nil {
		return r, err
	}
	gauge := &probe.Gauge{Child: backend.NVMLChild(c, node, "meter", nvmlTimeout)}
	defer gauge.Close()
	uses, err := gauge.Measure(c.Context, berth.ListComputable(inv))
	if err != nil {
		return r, fmt.Errorf("the devices that process %d uses are unknown, name them: berth adopt %d REQUEST: %w", pid, pid, err)
	}
	used := node.FindUsed(inv, uses, pid)
	if len(used) == 0 {
		return r, fmt.Errorf("process %d and its descendants use no GPU that can be seen here: name a request, such as berth adopt %d 1", pid, pid)
	}
	return request.Parse(requestOf(used))
}

// requestOf returns the words of the request for devices.
func requestOf(devices []gpu.Device) string {
	var indexes []string
	for _, d := range devices {
		indexes = append(indexes, d.Index)
	}
	if len(indexes) == 1 {
		return "device=" + indexes[0]
	}
	return strings.Join(indexes, ",")
}

func adoptAsRoot(c *cli.Context, node *berth.Node, p *hostprocess.Process, wanted request.Request) (granted protocol.Granted, err error) {
	name := node.ProcessHost().Name(p)
	lease, moved, err := node.LeaseProcess(c.Context, berth.ProcessLease{
		Process: p, Tree: true, Skip: os.Getpid(), Name: name, Command: name, Request: wanted,
		Wait: waiting.Limit(c), Waiting: waiting.NewWaitPrinter(time.Now()),
	})
	if err != nil {
		return granted, errors.Join(verb.NameRequest(err), node.SweepCommandCgroups(context.WithoutCancel(c.Context)))
	}
	granted = protocol.Granted{Lease: lease, Environment: berth.CommandEnvironment(lease), Remarks: moved.Remarks, PIDs: moved.PIDs}
	for _, o := range node.FindOccupied(lease.Devices) {
		granted.Remarks = append(granted.Remarks, o.String())
	}
	return granted, nil
}

// printAdopted prints what was leased. idle means that the processes need not use the devices yet.
func printAdopted(c *cli.Context, granted protocol.Granted, idle bool) error {
	lease := granted.Lease
	switch {
	case c.Bool("json"):
		return output.PrintJSON(os.Stdout, lease)
	case c.Bool("export"):
		for _, variable := range granted.Environment {
			name, value, _ := strings.Cut(variable, "=")
			fmt.Printf("export %s='%s'\n", name, value)
		}
		return nil
	}
	fmt.Printf("%s: GPU %s for %s\n", lease.ID, output.JoinIndexes(lease.Devices), output.FormatCount(len(granted.PIDs), "process"))
	if idle {
		verb.PrintError("CUDA_VISIBLE_DEVICES is as it was in the running processes; --export prints the commands that set it in a shell")
	}
	return nil
}
