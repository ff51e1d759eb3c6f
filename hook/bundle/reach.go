package bundle

import (
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Reach decodes only what decides whether the container asks for accelerators or
// could reach one: annotations, environment, capabilities, hooks, mounts, device nodes,
// device rules and the cgroup, and of these only what [specs.Spec] calls by the same names as used
// there. Most containers have no more to do with berth than that, and to decode
// all that [Document.Spec] does costs them a quarter of what they wait for us.
//
// What isn't written plainly (null, numbers that aren't whole, other types) is
// left to Spec, with its errors.
func (d *Document) Reach() (*specs.Spec, error) {
	text := d.view
	if text == nil {
		text = d.raw
	}
	if s, ok := reach(text); ok {
		return s, nil
	}
	return d.Spec()
}

func reach(text []byte) (s *specs.Spec, ok bool) {
	s, ok = &specs.Spec{}, true
	for _, m := range members(text) {
		var good bool
		switch m.key {
		case "ociVersion":
			s.Version, good = plainText(m.value)
		case "annotations":
			s.Annotations, good = plainTexts(m.value)
		case "process":
			s.Process, good = reachProcess(m.value)
		case "mounts":
			s.Mounts, good = list(m.value, reachMount)
		case "hooks":
			s.Hooks, good = reachHooks(m.value)
		case "linux":
			s.Linux, good = reachLinux(m.value)
		default:
			good = true
		}
		ok = ok && good
	}
	return s, ok
}

func reachProcess(text []byte) (*specs.Process, bool) {
	p, ok := &specs.Process{}, text[0] == '{'
	if m, there := find(text, "env"); there && ok {
		p.Env, ok = list(m.value, plainText)
	}
	if m, there := find(text, "capabilities"); there && ok {
		p.Capabilities, ok = reachCapabilities(m.value)
	}
	return p, ok
}

func reachCapabilities(text []byte) (c *specs.LinuxCapabilities, ok bool) {
	c, ok = &specs.LinuxCapabilities{}, text[0] == '{'
	for key, set := range map[string]*[]string{
		"bounding": &c.Bounding, "effective": &c.Effective, "permitted": &c.Permitted,
		"inheritable": &c.Inheritable, "ambient": &c.Ambient,
	} {
		if m, there := find(text, key); there && ok {
			*set, ok = list(m.value, plainText)
		}
	}
	return c, ok
}

// reachHooks reads every stage: package hook/entry says what each can mean.
func reachHooks(text []byte) (h *specs.Hooks, ok bool) {
	h, ok = &specs.Hooks{}, text[0] == '{'
	for _, m := range members(text) {
		good := true
		switch m.key {
		case "prestart":
			h.Prestart, good = list(m.value, reachHook) //nolint:staticcheck // Docker still writes it.
		case "createRuntime":
			h.CreateRuntime, good = list(m.value, reachHook)
		case "createContainer":
			h.CreateContainer, good = list(m.value, reachHook)
		case "startContainer":
			h.StartContainer, good = list(m.value, reachHook)
		case "poststart":
			h.Poststart, good = list(m.value, reachHook)
		case "poststop":
			h.Poststop, good = list(m.value, reachHook)
		}
		ok = ok && good
	}
	return h, ok
}

func reachHook(text []byte) (h specs.Hook, ok bool) {
	ok = text[0] == '{'
	for _, f := range members(text) {
		good := true
		switch f.key {
		case "path":
			h.Path, good = plainText(f.value)
		case "args":
			h.Args, good = list(f.value, plainText)
		case "env":
			h.Env, good = list(f.value, plainText)
		}
		ok = ok && good
	}
	return h, ok
}

func reachMount(text []byte) (m specs.Mount, ok bool) {
	ok = text[0] == '{'
	for _, f := range members(text) {
		good := true
		switch f.key {
		case "destination":
			m.Destination, good = plainText(f.value)
		case "type":
			m.Type, good = plainText(f.value)
		case "source":
			m.Source, good = plainText(f.value)
		case "options":
			m.Options, good = list(f.value, plainText)
		}
		ok = ok && good
	}
	return m, ok
}

func reachLinux(text []byte) (l *specs.Linux, ok bool) {
	l, ok = &specs.Linux{}, text[0] == '{'
	for _, m := range members(text) {
		good := true
		switch m.key {
		case "cgroupsPath":
			l.CgroupsPath, good = plainText(m.value)
		case "devices":
			l.Devices, good = list(m.value, reachDevice)
		case "resources":
			if good = m.value[0] == '{'; good {
				l.Resources = &specs.LinuxResources{}
				if r, there := find(m.value, "devices"); there {
					l.Resources.Devices, good = list(r.value, reachRule)
				}
			}
		}
		ok = ok && good
	}
	return l, ok
}

func reachDevice(text []byte) (d specs.LinuxDevice, ok bool) {
	ok = text[0] == '{'
	for _, f := range members(text) {
		good := true
		switch f.key {
		case "path":
			d.Path, good = plainText(f.value)
		case "type":
			d.Type, good = plainText(f.value)
		case "major":
			d.Major, good = plainNumber(f.value)
		case "minor":
			d.Minor, good = plainNumber(f.value)
		}
		ok = ok && good
	}
	return d, ok
}

func reachRule(text []byte) (r specs.LinuxDeviceCgroup, ok bool) {
	ok = text[0] == '{'
	for _, f := range members(text) {
		good := true
		switch f.key {
		case "allow":
			r.Allow = string(f.value) == "true"
			good = r.Allow || string(f.value) == "false"
		case "type":
			r.Type, good = plainText(f.value)
		case "access":
			r.Access, good = plainText(f.value)
		case "major":
			r.Major, good = plainPointer(f.value)
		case "minor":
			r.Minor, good = plainPointer(f.value)
		}
		ok = ok && good
	}
	return r, ok
}

// list reads an array whose elements read knows.
func list[T any](text []byte, read func([]byte) (T, bool)) (all []T, ok bool) {
	ok = text[0] == '['
	for _, e := range elements(text) {
		v, good := read(e)
		all, ok = append(all, v), ok && good
	}
	return all, ok
}

func plainText(text []byte) (string, bool) {
	if text[0] != '"' {
		return "", false
	}
	for _, c := range text { // what encoding/json would read differently is for it
		if c == '\\' || c > '~' {
			return "", false
		}
	}
	return string(text[1 : len(text)-1]), true
}

func plainTexts(text []byte) (all map[string]string, ok bool) {
	all, ok = map[string]string{}, text[0] == '{'
	for _, m := range members(text) {
		v, good := plainText(m.value)
		all[m.key], ok = v, ok && good
	}
	return all, ok
}

func plainNumber(text []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil
}

func plainPointer(text []byte) (*int64, bool) {
	n, ok := plainNumber(text)
	return &n, ok
}
