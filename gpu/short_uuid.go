package gpu

import "strings"

// ShortenUUIDs returns the beginnings of the UUIDs of GPUs and MIG slices: four hexadecimal digits
// behind "GPU-" or "MIG-", or as many as make all of a kind different. Requests accept them in
// place of the UUIDs. Other names stay whole.
func ShortenUUIDs(uuids []string) []string {
	const digits = 4
	short := make([]string, len(uuids))
	copy(short, uuids)
	for _, kind := range []string{"GPU-", "MIG-"} {
		for n := len(kind) + digits; !shortenKind(short, uuids, kind, n); n++ {
		}
	}
	return short
}

// shortenKind cuts the UUIDs of a kind to n bytes and says whether different ones still differ.
func shortenKind(short, uuids []string, kind string, n int) bool {
	whole := map[string]string{}
	for i, uuid := range uuids {
		if !strings.HasPrefix(uuid, kind) {
			continue
		}
		short[i] = uuid[:min(n, len(uuid))]
		if other, taken := whole[short[i]]; taken && other != uuid {
			return false
		}
		whole[short[i]] = uuid
	}
	return true
}
