package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"
)

// Use is what is used of one device now.
type Use struct {
	UUID string `json:"uuid"`
	// Memory of Total bytes; both 0 if unknown.
	Memory uint64 `json:"memory,omitempty"`
	Total  uint64 `json:"total,omitempty"`
	// Busy is the share of the last moments in which something ran, in percent; nil if the driver
	// doesn't report it, as for a slice.
	Busy *int `json:"busy,omitempty"`
	// Processes compute on the device. Processes that only render aren't listed.
	Processes []Process `json:"processes,omitempty"`
	// Error says why nothing is known.
	Error string `json:"error,omitempty"`
	// Lost means that NVML calls the device lost; Error has its words.
	Lost bool `json:"lost,omitempty"`
}

// Process is a process that computes on a device.
type Process struct {
	PID int `json:"pid"`
	// Memory of the device that it holds, in bytes; 0 if unknown.
	Memory uint64 `json:"memory,omitempty"`
}

// Meter measures devices, one after another. Its calls may hang.
type Meter interface {
	Measure(uuids []string) []Use
}

// ServeUse is the child's half of a [Gauge]: for each line of UUIDs that it reads it
// writes one of measurements, until there are no more.
func ServeUse(r io.Reader, w io.Writer, m Meter) error {
	questions, answers := json.NewDecoder(r), json.NewEncoder(w)
	for {
		var uuids []string
		if err := questions.Decode(&uuids); err != nil {
			return nil // the parent has exited
		}
		if err := answers.Encode(m.Measure(uuids)); err != nil {
			return err
		}
	}
}

// Gauge measures devices by a child process, which is killed when it doesn't answer;
// the next measurement has another one. Its zero value with a Child is ready for use.
type Gauge struct {
	// Child is the program; it must call [ServeUse]. Its Timeout is for one answer;
	// 0 means five seconds.
	Child Child

	mu  sync.Mutex
	run *gaugeChild
}

// gaugeChild is one running child.
type gaugeChild struct {
	cmd     *exec.Cmd
	ask     io.WriteCloser
	answers chan answer
}

type answer struct {
	uses []Use
	err  error
}

// Measure returns what is used of the devices. A child that can't be run, or doesn't answer in time,
// is an error. An empty list of UUIDs returns no uses.
func (g *Gauge) Measure(ctx context.Context, uuids []string) ([]Use, error) {
	if len(uuids) == 0 {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.run == nil {
		run, err := g.Child.startMeasuring()
		if err != nil {
			return nil, err
		}
		g.run = run
	}
	uses, err := g.run.measureUses(ctx, uuids, g.Child.Timeout)
	if err != nil {
		g.run.killChild()
		g.run = nil
	}
	return uses, err
}

// Close ends the child, if there is one.
func (g *Gauge) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.run != nil {
		g.run.killChild()
		g.run = nil
	}
}

func (c Child) startMeasuring() (*gaugeChild, error) {
	g := &gaugeChild{cmd: exec.Command(c.Path, c.Args...), answers: make(chan answer)}
	stderr := &outputHead{}
	g.cmd.Env, g.cmd.Stderr, g.cmd.WaitDelay = c.Env, stderr, time.Second
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", c.Path, err)
	}
	if g.ask, err = g.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("run %s: %w", c.Path, err)
	}
	if err := c.start(g.cmd); err != nil {
		return nil, err
	}
	go g.forwardUses(out, stderr)
	return g, nil
}

// forwardUses outlives the gauging when the child can't be killed.
func (g *gaugeChild) forwardUses(out io.Reader, stderr *outputHead) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a answer
		if a.err = json.Unmarshal(lines.Bytes(), &a.uses); a.err != nil {
			a.err = fmt.Errorf("read output: %w", a.err)
		}
		g.answers <- a
	}
	err := g.cmd.Wait()
	if text := stderr.String(); text != "" {
		err = fmt.Errorf("%s", text)
	}
	g.answers <- answer{err: fmt.Errorf("measure devices: the child ended: %w", err)}
}

func (g *gaugeChild) measureUses(ctx context.Context, uuids []string, limit time.Duration) ([]Use, error) {
	if limit == 0 {
		limit = 5 * time.Second
	}
	question, err := json.Marshal(uuids)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	go func() { _, _ = g.ask.Write(append(question, '\n')) }() // if the child doesn't read, no answer comes, and the timer ends the wait
	select {
	case a := <-g.answers:
		return a.uses, a.err
	case <-timer.C:
		return nil, fmt.Errorf("measure devices: no answer within %s", limit)
	case <-ctx.Done():
		return nil, fmt.Errorf("measure devices: %w", context.Cause(ctx))
	}
}

// killChild kills the child and doesn't wait for its death; see Child.Read.
func (g *gaugeChild) killChild() {
	_ = g.ask.Close()        // the child then ends by itself
	_ = g.cmd.Process.Kill() // in case it hangs; the error of a child that has ended is ignored
	go func() {
		for a := range g.answers {
			if a.err != nil {
				return
			}
		}
	}()
}
