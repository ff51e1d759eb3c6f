package cdi

import (
	"slices"

	"github.com/berth-gpu/berth/cdi/ldcache"
)

// mergeCache adds our libraries to the image's loader cache, in place of what an
// earlier start left. What isn't a cache is none to the loader either.
func (p *preparation) mergeCache(old []byte) []byte {
	cache, err := ldcache.Parse(old)
	if err != nil {
		p.addNote("%s of the image is replaced: %v", cachePath, err)
		cache = ldcache.Cache{}
	}
	return cache.Without(OtherTarget).Without(p.Target).Merge(p.cacheEntries()).Bytes()
}

// cacheEntries are all that we add, what is to be found first coming first.
func (p *preparation) cacheEntries() []ldcache.Entry {
	return slices.Concat(p.newer.entries, thisMachine().driverEntries(p.dir, p.Target))
}
