// Package probe runs a driver library's reading in a process of its own.
//
// A library call can hang in the kernel, where no signal reaches it; a process
// with such a thread can't end, and the next one shouldn't have to wait for it.
// So berth discover starts berth-nvml, which calls [Serve] and writes what it
// learns line by line. The parent reads it as a [gpu.Source], the [Child]. A GPU that the child never
// reported is lost; everything else arrives.
//
// The format between the two is JSON lines of [Message]. It is no interface for
// others: both ends are of the same release.
package probe

import (
	"context"
	"fmt"

	"github.com/berth-gpu/berth/gpu"
)

// Stream is a source that reports each fact as soon as it knows it.
type Stream interface {
	// Stream sends one message with Start, then one with GPU for each index
	// below Start.GPUs in any order, and ends. It calls send from one goroutine
	// at a time and stops when send fails. It returns soon after ctx ends even
	// when a library call hangs.
	Stream(ctx context.Context, send func(Message) error) error
}

// Message is one step of reading a node. One of its fields is set.
type Message struct {
	Start *Start   `json:"start,omitempty"`
	GPU   *Reading `json:"gpu,omitempty"`
	// Failure ends the stream: nothing could be learned.
	Failure *Failure `json:"failure,omitempty"`
	// Done ends the stream: all GPUs were reported.
	Done bool `json:"done,omitempty"`
}

// Start has the facts that are known before the first GPU is read.
type Start struct {
	Driver gpu.Driver `json:"driver"`
	GPUs   int        `json:"gpus"`
}

// Reading is one GPU, and its ends of NVLinks.
type Reading struct {
	gpu.GPU
	// SwitchLinks counts active NVLinks to an NVSwitch.
	SwitchLinks int `json:"switch_links,omitempty"`
	// PeerLinks counts active NVLinks to other GPUs, by PCI address.
	PeerLinks map[string]int `json:"peer_links,omitempty"`
}

// Failure is an error on its way through a pipe.
type Failure struct {
	Text string `json:"text"`
	// NoDriver is set if the error is a [gpu.NoDriverError].
	NoDriver *gpu.NoDriverError `json:"no_driver,omitempty"`
}

// maxGPUs is more than any node has; a library that counts more is broken.
const maxGPUs = 1024

// Collect reads a stream to its end, in this process.
func Collect(ctx context.Context, s Stream) (gpu.Report, error) {
	var c collector
	if err := s.Stream(ctx, c.addMessage); err != nil {
		return gpu.Report{}, err
	}
	return c.closeReport("not reported by the library")
}

// collector gathers messages into a report.
type collector struct {
	start    *Start
	readings []*Reading
	done     bool
}

func (c *collector) addMessage(m Message) error {
	switch {
	case m.Failure != nil:
		return m.Failure.asError()
	case m.Start != nil:
		if c.start != nil || m.Start.GPUs < 0 || m.Start.GPUs > maxGPUs {
			return fmt.Errorf("read node: %d GPUs announced out of turn or beyond %d", m.Start.GPUs, maxGPUs)
		}
		c.start, c.readings = m.Start, make([]*Reading, m.Start.GPUs)
	case m.GPU != nil:
		i := m.GPU.Index
		if i < 0 || i >= len(c.readings) || c.readings[i] != nil {
			return fmt.Errorf("read node: GPU %d reported out of turn", i)
		}
		c.readings[i] = m.GPU
	case m.Done:
		c.done = true
	}
	return nil
}

// closeReport closes the collection. GPUs that were announced and never reported are
// lost for the given reason.
func (c *collector) closeReport(missing string) (gpu.Report, error) {
	if c.start == nil {
		return gpu.Report{}, fmt.Errorf("read node: %s", missing)
	}
	r := gpu.Report{Driver: c.start.Driver, GPUs: make([]gpu.GPU, 0, len(c.readings))}
	for i, reading := range c.readings {
		if reading == nil {
			reading = &Reading{GPU: Lost(i, missing)}
			c.readings[i] = reading
		}
		r.GPUs = append(r.GPUs, reading.GPU)
	}
	r.NVLinks = joinLinks(c.readings)
	return r, nil
}

// Lost returns a GPU of which only the index is known.
func Lost(index int, reason string) gpu.GPU {
	return gpu.GPU{UUID: fmt.Sprintf("LOST-%d", index), Index: index, Minor: -1, NUMA: -1, Lost: reason}
}

// joinLinks builds links from the GPUs' ends: direct NVLinks between two GPUs, and through
// NVSwitches the smaller of both counts.
func joinLinks(readings []*Reading) []gpu.Link {
	var all []gpu.Link
	for b, rb := range readings {
		for a, ra := range readings[:b] {
			if ra.Lost != "" || rb.Lost != "" {
				continue
			}
			n := max(ra.PeerLinks[rb.PCI], rb.PeerLinks[ra.PCI], min(ra.SwitchLinks, rb.SwitchLinks))
			if n > 0 {
				all = append(all, gpu.Link{A: a, B: b, NVLinks: n})
			}
		}
	}
	return all
}
