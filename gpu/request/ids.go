package request

import (
	"strconv"
	"strings"
)

// canonicalID reads one id in lower case and returns it as the rest of the package compares it. ok
// is false if w isn't an id.
func canonicalID(w string) (id string, ok bool) {
	if len(w) > maxWord {
		return "", false
	}
	if rest, isGPU := strings.CutPrefix(w, "gpu-"); isGPU && isUUIDText(rest) {
		return "GPU-" + rest, true
	}
	if rest, isMIG := strings.CutPrefix(w, "mig-"); isMIG && isUUIDText(rest) {
		return "MIG-" + rest, true
	}
	if pci, isPCI := canonicalPCI(strings.TrimPrefix(w, "lost-")); isPCI {
		return pci, true
	}
	gpu, slice, isSlice := strings.Cut(w, ":")
	if !isSlice {
		return canonicalIndex(w)
	}
	g, okGPU := canonicalIndex(gpu)
	if uuid, byUUID := strings.CutPrefix(gpu, "gpu-"); byUUID {
		g, okGPU = "GPU-"+uuid, isUUIDText(uuid)
	}
	s, okSlice := canonicalIndex(slice)
	return g + ":" + s, okGPU && okSlice
}

func canonicalIndex(w string) (string, bool) {
	if !isNumber(w) {
		return "", false
	}
	n, ok := smallNumber(w)
	return strconv.Itoa(n), ok
}

// isUUIDText reports whether w may follow "GPU-": it is a UUID or the beginning of one.
func isUUIDText(s string) bool {
	return s != "" && strings.Trim(s, "0123456789abcdefghijklmnopqrstuvwxyz-") == "" && s[0] != '-'
}

// canonicalPCI reads [domain:]bus:device.function and returns it in sysfs form:
// a domain of at least four digits. NVML prints eight.
func canonicalPCI(w string) (string, bool) {
	parts := strings.Split(w, ":")
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if len(parts) != 3 {
		return "", false
	}
	domain, bus, slot := parts[0], parts[1], parts[2]
	if !isHex(domain, 4, 8) || !isHex(bus, 2, 2) || len(slot) != 4 || slot[2] != '.' ||
		!isHex(slot[:2], 2, 2) || slot[3] < '0' || slot[3] > '7' {
		return "", false
	}
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return domain + ":" + bus + ":" + slot, true
}

func isHex(s string, shortest, longest int) bool {
	return len(s) >= shortest && len(s) <= longest && strings.Trim(s, "0123456789abcdef") == ""
}

// isProfile reports whether w has the shape of a MIG profile as the driver names
// them: 1g.10gb, 1c.3g.40gb, 1g.10gb+me, 1g.24gb+me.all.
func isProfile(w string) bool {
	w, attributes, has := strings.Cut(w, "+")
	if has && (attributes == "" || strings.ContainsFunc(attributes, notNameByte)) {
		return false
	}
	parts := strings.Split(w, ".")
	if len(parts) == 3 && isNumberWith(parts[0], "c") {
		parts = parts[1:]
	}
	return len(parts) == 2 && isNumberWith(parts[0], "g") && isNumberWith(parts[1], "gb")
}

func isNumberWith(w, unit string) bool {
	n, ok := strings.CutSuffix(w, unit)
	return ok && isNumber(n)
}
