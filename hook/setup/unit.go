package setup

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// usualPath is what systemd gives to services.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// unitDirs are where systemd looks for units, those that count first.
func unitDirs() []string {
	return []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}
}

// unit is what berth needs to know of a service of systemd's.
type unit struct {
	host  Host
	name  string
	found bool
	// settings are those of [Service], in the order in which they count.
	settings []setting
}

type setting struct{ file, key, value string }

// unit reads a unit and its drop-ins, as systemd does.
func (h Host) unit(name string) unit {
	u := unit{host: h, name: name}
	for _, dir := range unitDirs() {
		if f, _, err := h.read(path.Join(dir, name)); err == nil && f.Exists {
			u.found = true
			u.add(path.Join(dir, name), f.Data)
			break
		}
	}
	for _, file := range h.dropIns(name) {
		if f, _, err := h.read(file); err == nil {
			u.add(file, f.Data)
		}
	}
	return u
}

// dropIns are the drop-ins of a unit, by name: of two that are called the same the one
// in the directory that counts first.
func (h Host) dropIns(unit string) []string {
	files := map[string]string{}
	for _, dir := range slices.Backward(unitDirs()) {
		dir = path.Join(dir, unit+".d")
		for _, name := range h.names(dir) {
			if strings.HasSuffix(name, ".conf") {
				files[name] = path.Join(dir, name)
			}
		}
	}
	var all []string
	for _, file := range files {
		all = append(all, file)
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(path.Base(a), path.Base(b)) })
	return all
}

// add reads the settings of a file.
func (u *unit) add(file string, text []byte) {
	joined := strings.NewReplacer("\r\n", "\n", "\\\n", " ").Replace(string(text))
	service := false
	for line := range strings.Lines(joined) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(line, "["):
			service = line == "[Service]"
		case service && ok && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";"):
			u.settings = append(u.settings, setting{file, strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
}

// searchPath is the PATH of the service without what a drop-in of ours says; otherwise
// is what it is if nothing sets it. late is a file that sets it after ours does, or "".
func (u unit) searchPath(ours, otherwise string) (search, late string) {
	search = cmp.Or(otherwise, usualPath)
	for _, s := range u.settings {
		value, ok := variable(words(s.value), "PATH")
		switch {
		case s.file == ours:
		case s.key == "EnvironmentFile":
			if value, ok := u.fromFile(s.value, "PATH"); ok {
				search, late = value, strings.TrimPrefix(s.value, "-")
			}
		case s.key == "Environment" && s.value == "":
			search = cmp.Or(otherwise, usualPath)
		case s.key == "Environment" && ok:
			search = value
			if strings.HasSuffix(path.Dir(s.file), ".d") && path.Base(s.file) > path.Base(ours) {
				late = s.file
			}
		}
	}
	return search, late
}

// fromFile looks a variable up in an environment file.
func (u unit) fromFile(name, key string) (string, bool) {
	f, _, err := u.host.read(strings.TrimPrefix(name, "-"))
	if err != nil {
		return "", false
	}
	var lines []string
	for line := range strings.Lines(string(f.Data)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") {
			name, value, _ := strings.Cut(line, "=")
			lines = append(lines, name+"="+strings.Trim(value, `"'`))
		}
	}
	return variable(lines, key)
}

// variable looks a variable up among assignments: the last one counts.
func variable(assignments []string, key string) (value string, ok bool) {
	for _, a := range assignments {
		if v, found := strings.CutPrefix(a, key+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// words splits a setting at white space that isn't quoted.
func words(text string) (all []string) {
	word, quote, open := "", rune(0), false
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, open = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if open {
				all = append(all, word)
			}
			word, open = "", false
		default:
			word, open = word+string(r), true
		}
	}
	if open {
		all = append(all, word)
	}
	return all
}

// command is what the service starts, with the words of its variables.
func (u unit) command() (all []string) {
	vars := map[string]string{}
	var line string
	for _, s := range u.settings {
		switch s.key {
		case "ExecStart":
			line = s.value
		case "Environment":
			for _, w := range words(s.value) {
				name, value, _ := strings.Cut(w, "=")
				vars[name] = value
			}
		}
	}
	for _, w := range words(line) {
		name, is := strings.CutPrefix(w, "$")
		if !is {
			all = append(all, w)
			continue
		}
		name = strings.Trim(name, "{}")
		value := vars[name]
		for _, s := range u.settings {
			if v, ok := u.fromFile(s.value, name); ok && s.key == "EnvironmentFile" {
				value = v
			}
		}
		all = append(all, words(value)...)
	}
	return all
}

// option is what a flag of the command says, in whichever of its forms; "" if it isn't
// there.
func (u unit) option(flags ...string) (value string, ok bool) {
	command := u.command()
	for i, w := range command {
		flag, v, attached := strings.Cut(w, "=")
		if !slices.Contains(flags, flag) {
			continue
		}
		if value, ok = v, true; !attached && i+1 < len(command) {
			value = command[i+1]
		}
	}
	return value, ok
}

// dockerConfig is the file that dockerd reads. What dockerd is told on its command line
// it doesn't take from there as well, and doesn't start.
func (u unit) dockerConfig() (string, error) {
	file, ok := u.option("--config-file")
	if !ok {
		file = dockerConfig
	}
	for _, flag := range []string{"--add-runtime", "--default-runtime"} {
		if _, ok := u.option(flag); ok {
			return "", fmt.Errorf("%s gives dockerd %s, which it then takes from no file: move that to %s", u.name, flag, file)
		}
	}
	return file, nil
}
