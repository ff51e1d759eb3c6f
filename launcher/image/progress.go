package image

import "sync"

// progress counts bytes and sends reports, at most one for each MiB. It is safe for concurrent use.
type progress struct {
	report func(Progress)
	count  int // of the image's layers

	mu     sync.Mutex
	layers map[digest]int64 // bytes of each
	done   int64
	told   int64
	total  int64
}

func (p *progress) addBytes(l layer, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.layers == nil {
		p.layers = map[digest]int64{}
	}
	p.layers[l.chain] += int64(n)
	p.done += int64(n)
	if p.done-p.told >= 1<<20 || p.told == 0 {
		p.told = p.done
		p.sendReport(l, Progress{})
	}
}

// bytesOf returns how many bytes of a layer were read.
func (p *progress) bytesOf(l layer) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.layers[l.chain]
}

// restartLayer subtracts the bytes of a layer that is read again.
func (p *progress) restartLayer(l layer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done -= p.layers[l.chain]
	p.told = p.done
	delete(p.layers, l.chain)
}

// reportLayer reports an event of a layer.
func (p *progress) reportLayer(l layer, what Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sendReport(l, what)
}

func (p *progress) sendReport(l layer, what Progress) {
	if p.report == nil {
		return
	}
	what.Layer, what.LayerDone, what.LayerSize = string(l.diff), p.layers[l.chain], l.blob.Size
	what.Done, what.Total, what.Layers = p.done, p.total, p.count
	p.report(what)
}
