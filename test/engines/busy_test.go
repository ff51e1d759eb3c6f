package engines

import (
	"regexp"
	"strings"
	"testing"
)

// If too few devices are free, the engine's own output has one line with the number requested, the
// number free, and the holders of the others since when; nothing is left of the container.
func TestBusy(t *testing.T) {
	eachEngine(t, []string{"runc", "crun", "berth"}, func(t *testing.T, p place) {
		p.usable(t)
		s := server{p.host}
		s.takeGPUs(t, 1)()
		p.start(t, containerOptions{}).end() // engines make some directories at the first use
		c := p.start(t, containerOptions{devices: []string{"berth/gpus=1"}})
		release := s.takeGPUs(t, 5)
		before := p.footprint(t)
		holder := p.live(t)[0].Owner
		const since = ` since \d{4}-\d\d-\d\d \d\d:\d\d`
		line := `request 4: 4 asked, 2 of 8 free; held: GPU \d by ` + regexp.QuoteMeta(holder.EntryPoint+" "+holder.Container[:min(12, len(holder.Container))]) +
			since + `, GPU \d,\d,\d,\d,\d by alloc.*` + since + `; try again when they are free: berth leases shows who holds what`
		p.checkLine(t, p.wantRefused(t, containerOptions{devices: []string{"berth/gpus=4"}}), line)
		p.waitForLeases(t, before, 2)
		release()
		p.waitForLeases(t, nil, 1)

		if p.runtime != "berth" {
			return
		}
		var releases []func()
		for range 7 {
			releases = append(releases, s.takeGPUs(t, 1))
		}
		before = p.footprint(t)
		text := p.wantRefused(t, containerOptions{devices: []string{"berth/gpus=1"}})
		p.checkLine(t, text, `request 1: 1 asked, 0 of 8 free; held: GPU \d by .* and 4 more; try again`)
		if len(text) > 2000 {
			t.Errorf("%d bytes: %s", len(text), text)
		}
		p.waitForLeases(t, before, 8)
		for _, release := range releases {
			release()
		}
		c.end()
		p.waitForLeases(t, nil, 0)
	})
}

// checkLine checks that exactly one line matches; with crun there is none, because it discards the
// output of hooks.
func (p place) checkLine(t *testing.T, text, pattern string) {
	t.Helper()
	line, count := regexp.MustCompile(pattern), 0
	for one := range strings.Lines(text) {
		if line.MatchString(one) {
			count++
		}
	}
	if count != 1 && p.runtime != "crun" {
		t.Errorf("%d lines match %s:\n%s", count, pattern, text)
	}
}
