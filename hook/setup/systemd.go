package setup

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// defaultPath is the PATH that systemd gives to services.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// unitDirs returns where systemd looks for units, in order of precedence.
func unitDirs() []string {
	return []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}
}

// unit is the [Service] section of a systemd service and its drop-ins.
type unit struct {
	host  Host
	name  string
	found bool
	// settings are in the order in which systemd reads them.
	settings []unitSetting
}

type unitSetting struct{ file, key, value string }

// readUnit reads a unit and its drop-ins.
func (h Host) readUnit(name string) unit {
	u := unit{host: h, name: name}
	for _, dir := range unitDirs() {
		if f, _, err := h.readTarget(path.Join(dir, name)); err == nil && f.Exists {
			u.found = true
			u.addSettings(path.Join(dir, name), f.Data)
			break
		}
	}
	for _, file := range h.listDropIns(name) {
		if f, _, err := h.readTarget(file); err == nil {
			u.addSettings(file, f.Data)
		}
	}
	return u
}

// listDropIns returns the drop-ins of a unit in the order of their names. A drop-in masks
// those of the same name in directories of lower precedence.
func (h Host) listDropIns(unit string) []string {
	files := map[string]string{}
	for _, dir := range slices.Backward(unitDirs()) {
		dir = path.Join(dir, unit+".d")
		for _, name := range h.listDir(dir) {
			if strings.HasSuffix(name, ".conf") {
				files[name] = path.Join(dir, name)
			}
		}
	}
	return slices.SortedFunc(maps.Values(files), func(a, b string) int { return cmp.Compare(path.Base(a), path.Base(b)) })
}

// addSettings adds the settings of a file.
func (u *unit) addSettings(file string, text []byte) {
	joined := strings.NewReplacer("\r\n", "\n", "\\\n", " ").Replace(string(text))
	service := false
	for line := range strings.Lines(joined) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(line, "["):
			service = line == "[Service]"
		case service && ok && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";"):
			u.settings = append(u.settings, unitSetting{file, strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
}

// searchPath returns the PATH of the service as it is without a drop-in of berth's.
// fallback is the PATH if nothing sets it. late is a file that sets PATH after berth's
// drop-in, "" if there is none.
func (u unit) searchPath(berths, fallback string) (search, late string) {
	search = cmp.Or(fallback, defaultPath)
	for _, s := range u.settings {
		value, ok := findVariable(splitWords(s.value), "PATH")
		switch {
		case s.file == berths:
		case s.key == "EnvironmentFile":
			if value, ok := u.readVariable(s.value, "PATH"); ok {
				search, late = value, strings.TrimPrefix(s.value, "-")
			}
		case s.key == "Environment" && s.value == "":
			search = cmp.Or(fallback, defaultPath)
		case s.key == "Environment" && ok:
			search = value
			if strings.HasSuffix(path.Dir(s.file), ".d") && path.Base(s.file) > path.Base(berths) {
				late = s.file
			}
		}
	}
	return search, late
}

// readVariable looks a variable up in an environment file.
func (u unit) readVariable(name, key string) (string, bool) {
	f, _, err := u.host.readTarget(strings.TrimPrefix(name, "-"))
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
	return findVariable(lines, key)
}

// findVariable returns the value of the last assignment to a variable.
func findVariable(assignments []string, key string) (value string, ok bool) {
	for _, a := range assignments {
		if v, found := strings.CutPrefix(a, key+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// splitWords splits a setting at white space outside of quotes.
func splitWords(text string) (all []string) {
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

// command returns the command line of the service, with its variables expanded.
func (u unit) command() (all []string) {
	vars := map[string]string{}
	var line string
	for _, s := range u.settings {
		switch s.key {
		case "ExecStart":
			line = s.value
		case "Environment":
			for _, w := range splitWords(s.value) {
				name, value, _ := strings.Cut(w, "=")
				vars[name] = value
			}
		}
	}
	for _, w := range splitWords(line) {
		name, is := strings.CutPrefix(w, "$")
		if !is {
			all = append(all, w)
			continue
		}
		name = strings.Trim(name, "{}")
		value := vars[name]
		for _, s := range u.settings {
			if v, ok := u.readVariable(s.value, name); ok && s.key == "EnvironmentFile" {
				value = v
			}
		}
		all = append(all, splitWords(value)...)
	}
	return all
}

// findFlag returns the value of a flag of the command, given as "--flag value" or
// "--flag=value".
func (u unit) findFlag(flags ...string) (value string, ok bool) {
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

// dockerConfig returns the file that dockerd reads. dockerd does not start if its command
// line and the file both name runtimes, so such a command line is an error.
func (u unit) dockerConfig() (string, error) {
	file, ok := u.findFlag("--config-file")
	if !ok {
		file = dockerConfigPath
	}
	for _, flag := range []string{"--add-runtime", "--default-runtime"} {
		if _, ok := u.findFlag(flag); ok {
			return "", fmt.Errorf("%s gives dockerd %s, which it then takes from no file: move that to %s", u.name, flag, file)
		}
	}
	return file, nil
}
