package image

import (
	"io"
	"sync"
)

// progress turns bytes into reports, at most one for each MiB. Several layers write
// to it.
type progress struct {
	report func(Progress)
	count  int // of the image's layers

	mu     sync.Mutex
	layers map[digest]int64 // bytes of each
	done   int64
	told   int64
	total  int64
}

func (p *progress) add(l layer, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.layers == nil {
		p.layers = map[digest]int64{}
	}
	p.layers[l.chain] += int64(n)
	p.done += int64(n)
	if p.done-p.told >= 1<<20 || p.told == 0 {
		p.told = p.done
		p.say(l, Progress{})
	}
}

// restart takes back what was counted of a layer.
func (p *progress) restart(l layer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done -= p.layers[l.chain]
	p.told = p.done
	delete(p.layers, l.chain)
}

func (p *progress) waiting(l layer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.say(l, Progress{Waiting: true})
}

func (p *progress) ready(l layer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.say(l, Progress{Ready: true})
}

func (p *progress) say(l layer, what Progress) {
	if p.report == nil {
		return
	}
	what.Layer, what.LayerDone, what.LayerSize = string(l.diff), p.layers[l.chain], l.blob.Size
	what.Done, what.Total, what.Layers = p.done, p.total, p.count
	p.report(what)
}

// drain reads a layer for its digests alone.
func drain(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}
