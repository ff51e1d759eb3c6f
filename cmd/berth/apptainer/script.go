package apptainer

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// scriptPath is the script that sets the container's environment and executes the command. No file of the image is there.
const scriptPath = "/dev/.berth"

// defaultPath is PATH before the image's scripts. Source: apptainer(1) 1.4 as it behaves.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findCommand returns the program to execute, its arguments and environment. has reports whether there is a file of this path in the container, and
// devices are the environment variables of the lease.
func (p *plan) findCommand(has func(path string) bool, devices []string) (argv, env []string, err error) {
	container := p.findImagePath()
	var binds []string
	for _, m := range p.binds {
		binds = append(binds, m.Destination)
	}
	env = []string{
		"PATH=" + defaultPath, "HOME=" + p.home.inside, "PS1=Apptainer> ",
		`PROMPT_COMMAND=PS1="Apptainer> "; unset PROMPT_COMMAND`, "APPTAINER_COMMAND=" + p.verb, "APPTAINER_APPNAME=" + p.app,
	}
	if p.app != "" {
		env = append(env, "SINGULARITY_APPNAME="+p.app)
	}
	if p.variables.clean {
		env = append(env, "LANG=C")
	}
	if !p.variables.eval {
		env = append(env, "APPTAINER_NO_EVAL=1", "SINGULARITY_NO_EVAL=1")
	}
	for _, prefix := range []string{"APPTAINER_", "SINGULARITY_"} {
		env = append(env, prefix+"CONTAINER="+container, prefix+"NAME="+path.Base(container),
			prefix+"BIND="+strings.Join(binds, ","), prefix+"ENVIRONMENT=/.singularity.d/env/91-environment.sh")
	}
	if p.instance != "" {
		env = append(env, "APPTAINER_INSTANCE="+p.instance, "SINGULARITY_INSTANCE="+p.instance)
	}
	if !has("/bin/sh") { // the command alone
		return p.findProgram(has, env, devices)
	}
	if p.joins { // no file can be added to the container
		program, script := passScript(p.writeScript())
		return append([]string{"/bin/sh", "-c", program, "/bin/sh"}, p.words...), slices.Concat(env, devices, script), nil
	}
	return append([]string{"/bin/sh", scriptPath}, p.words...), append(env, devices...), nil
}

// findImagePath returns the absolute path of the image, or the name of one of the store.
func (p *plan) findImagePath() string {
	if abs, err := filepath.Abs(p.image); err == nil && p.content == nil && !isRemoteSIF(p.image) {
		return abs
	}
	return p.image
}

// findProgram returns the program to execute in an image without a shell, its arguments and environment.
func (p *plan) findProgram(has func(path string) bool, env, devices []string) (argv, all []string, err error) {
	words, own := p.words, []string(nil)
	if p.content != nil {
		own = slices.DeleteFunc(slices.Clone(p.content.Config.Env), func(kv string) bool {
			return strings.HasPrefix(kv, "HOME=") || strings.HasPrefix(kv, "BERTH_") // the init process is berth, too
		})
		if p.verb == "run" {
			words, _ = p.content.chooseWords(p.words)
		}
	}
	if p.verb == "shell" || p.verb == "start" || p.verb == "run" && (p.content == nil || len(words) == 0) {
		return nil, nil, fmt.Errorf("%s: the image has no shell: berth apptainer exec runs a command of it", p.image)
	}
	all = mergeVariables(env, p.variables.host, own, p.variables.prefixed, p.variables.flags, devices)
	program := words[0]
	if !strings.Contains(program, "/") {
		program = ""
		for dir := range strings.SplitSeq(findVariable(all, "PATH"), ":") {
			if has(dir + "/" + words[0]) {
				program = dir + "/" + words[0]
				break
			}
		}
		if program == "" {
			return nil, nil, fmt.Errorf("%q: there is no such program in the image", words[0])
		}
	}
	return append([]string{program}, words[1:]...), all, nil
}

// scriptVariable begins the names of the environment variables of passScript.
const scriptVariable = "BERTH_SCRIPT_"

// passScript returns environment variables with a script that has secrets, and a program of a shell that executes it. The kernel limits the length of one variable.
func passScript(script []byte) (program string, variables []string) {
	const size = 64 << 10
	all, names := "", ""
	for part := range slices.Chunk(script, size) {
		name := scriptVariable + strconv.Itoa(len(variables))
		variables = append(variables, name+"="+string(part))
		all, names = all+"$"+name, names+" "+name
	}
	return `eval "unset` + names + "\n" + all + `"`, variables
}

// writeScript returns the script.
func (p *plan) writeScript() []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	// The image's scripts run in an environment without the host's variables, which then fill what the image hasn't set.
	if p.content != nil {
		p.content.setEnvironment(line)
	}
	line(`berth_source() { . "$1"; }`) // a function has arguments of its own, which a script may change
	line(`for berth_script in /.singularity.d/env/*.sh; do if [ -f "$berth_script" ]; then berth_source "$berth_script"; fi; done`)
	line(`if [ ! -d /.singularity.d/env ] && [ -f /environment ]; then berth_source /environment; fi`)
	line(`unset berth_script; unset -f berth_source`)
	line(`for berth_dir in %s; do case ":$PATH:" in *:"$berth_dir":*) ;; *) PATH=$PATH:$berth_dir ;; esac; done; unset berth_dir`, strings.ReplaceAll(defaultPath, ":", " "))
	line(`export PATH`)
	if p.content != nil { // other images have it in their scripts
		line(`export LD_LIBRARY_PATH="${LD_LIBRARY_PATH-/.singularity.d/libs}"`)
	}
	line(`unset SHLVL SINGULARITY_APPNAME`)
	for _, kv := range p.variables.host {
		name, value, _ := strings.Cut(kv, "=")
		line(`if [ -z "${%s+set}" ]; then export %s=%s; fi`, name, name, quoteWord(value))
	}
	if !p.variables.clean {
		line(`export USER_PATH=%s`, quoteWord(os.Getenv("PATH")+":/bin:/usr/bin:/sbin:/usr/sbin:/usr/local/bin:/usr/local/sbin"))
	}
	p.setVariables(line, p.variables.prefixed)
	if p.variables.file != "" {
		line("set -a\n%s\nset +a", p.variables.file)
	}
	p.setVariables(line, p.variables.flags)
	switch p.verb {
	case "exec":
		execWords(line, codeFailed)
	case "start":
		script := "/.singularity.d/startscript"
		if p.app != "" {
			script = "/scif/apps/" + quoteWord(p.app) + "/scif/startscript"
		}
		line(`if [ -x %[1]s ]; then exec %[1]s "$@"; fi`, script) // an image without one has an instance, too
	case "run":
		if p.app != "" {
			line(`if [ -x /scif/apps/%[1]s/scif/runscript ]; then exec /scif/apps/%[1]s/scif/runscript "$@"; fi`, quoteWord(p.app))
			line(`echo "berth: the image has no app "%s >&2; exit 1`, quoteWord(p.app))
		}
		if p.content != nil {
			p.runCommand(line)
			break
		}
		line(`if [ -x /.singularity.d/runscript ]; then exec /.singularity.d/runscript "$@"; fi`)
		line(`echo 'berth: the image has no runscript; executing /bin/sh' >&2`)
		line(`exec /bin/sh "$@"`)
	default:
		if p.shell != "" {
			line(`if [ -x %[1]s ]; then exec %[1]s; fi`, quoteWord(p.shell))
		}
		line(`if [ -x /bin/bash ]; then export SHELL=/bin/bash PS1="Apptainer $APPTAINER_NAME:\\w> "; exec /bin/bash --norc; fi`)
		line(`export SHELL=/bin/sh; exec /bin/sh`)
	}
	return []byte(b.String())
}

// execWords writes the lines that execute the arguments of the script. A program that is missing ends it with the code.
func execWords(line func(format string, args ...any), code int) {
	line(`berth_fail() { echo "berth: $*" >&2; exit %d; }`, code)
	line(`case "$1" in`)
	line(`*/*) [ -e "$1" ] || berth_fail "$1: no such file"; [ ! -d "$1" ] || berth_fail "$1 is a directory"; [ -x "$1" ] || berth_fail "$1: permission denied" ;;`)
	line(`*) [ -n "$(command -v -- "$1")" ] || berth_fail "$1: executable file not found in \$PATH" ;;`)
	line(`esac`)
	line(`unset -f berth_fail`)
	line(`exec "$@"`)
}

// setVariables writes assignments of variables.
func (p *plan) setVariables(line func(format string, args ...any), variables []string) {
	for _, kv := range variables {
		name, value, _ := strings.Cut(kv, "=")
		text := quoteWord(value)
		if p.variables.eval {
			text = quoteExpanded(value)
		}
		switch name {
		case "PREPEND_PATH":
			line(`export PATH=%s:"$PATH"`, text)
		case "APPEND_PATH":
			line(`export PATH="$PATH":%s`, text)
		case "LD_LIBRARY_PATH":
			line(`export LD_LIBRARY_PATH=%s:/.singularity.d/libs`, text)
		case "PS1":
			line(`export PS1=%s`, text)
			line(`export PROMPT_COMMAND='PS1="'"$PS1"'"; unset PROMPT_COMMAND'`)
		default:
			line(`export %s=%s`, name, text)
		}
	}
}

// quoteWord returns text as a word of a shell.
func quoteWord(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// quoteExpanded returns text as a word in which a shell expands variables and commands.
func quoteExpanded(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
