package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/spec"
)

// shownVerb is a command as completions know it: "run", "cdi generate".
type shownVerb struct {
	name, usage string
	flags       []option
	subs        []shownVerb
}

// option is a flag of one.
type option struct {
	names []string // as they are typed
	usage string
	value string // what kind of value it wants, "" for none
}

// verbsOf returns the verbs that aren't hidden.
func verbsOf(above string, commands []*cli.Command) (all []shownVerb) {
	for _, c := range commands {
		if c.Hidden {
			continue
		}
		name := strings.TrimSpace(above + " " + c.Name)
		all = append(all, shownVerb{name, c.Usage, optionsOf(name, c.Flags), verbsOf(name, c.Subcommands)})
	}
	return all
}

// optionsOf returns the flags that aren't hidden.
func optionsOf(verb string, flags []cli.Flag) (all []option) {
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); ok && !v.IsVisible() {
			continue
		}
		o := option{usage: strings.ReplaceAll(f.(cli.DocGenerationFlag).GetUsage(), "`", ""), value: kindOf(verb, f)}
		for _, name := range f.Names() {
			o.names = append(o.names, strings.Repeat("-", min(2, len(name)))+name)
		}
		all = append(all, o)
	}
	return append(all, option{names: []string{"--help", "-h"}, usage: "show help"})
}

// kindOf tells values apart that a shell can find: requests, files, directories,
// words. All others are "text".
func kindOf(verb string, f cli.Flag) string {
	switch f.(type) {
	case *cli.BoolFlag, *cli.GenericFlag: // whose value may be left out
		return ""
	}
	name := f.Names()[0]
	switch name {
	case "gpus", "gpus-per-rank":
		return "request"
	case "output", "volume", "workdir":
		return "directory"
	case "device":
		return "cdi"
	case "key", "config", "containerd-address", "env-file", "label-file", "cidfile", "pid-file", "gang":
		return "file"
	case "filter":
		return conditions()[verb]
	case "cap-add", "cap-drop":
		return "ALL " + strings.Join(capabilities(), " ")
	}
	return cmp.Or(choices()[name], "text")
}

// choices are the words that a flag's value is one of, or most often is.
func choices() map[string]string {
	const signals = "TERM KILL INT HUP QUIT USR1 USR2"
	return map[string]string{
		"engine": "native containerd", "runtime": "crun runc", "platform": "linux/amd64 linux/arm64",
		"pull": "missing always never", "restart": "no on-failure always unless-stopped", "log-opt": "max-size= max-file=",
		"network": "host none private rdma", "bind-gpus": "gang rank", "nics": "auto none", "ipc": "private host", "uts": "private host", "cgroupns": "private host", "pid": "private", "userns": "host",
		"security-opt": "no-new-privileges seccomp=unconfined apparmor=unconfined label=disable",
		"signal":       signals, "stop-signal": signals,
	}
}

// conditions are what verbs filter by.
func conditions() map[string]string {
	return map[string]string{
		"ps": "id= name= image= label= status= exited= gpu=", "images": "label= reference=", "prune": "until= label= label!=", "system prune": "until=",
	}
}

// capabilities are those that a task can be given.
func capabilities() []string {
	c, err := spec.ChooseCapabilities(spec.Host{Capabilities: ^uint64(0)}, []string{"ALL"}, nil)
	if err != nil {
		panic(err) // everything can be had
	}
	var names []string
	for _, name := range c.Names {
		names = append(names, strings.TrimPrefix(name, "CAP_"))
	}
	return names
}

// operands are what a verb's words are, as kindOf says of values. All others have none.
func operands() map[string]string {
	all := map[string]string{"run": "image", "rmi": "ask rmi", "alloc": "request", "cdi validate": "file"}
	for _, v := range []string{"exec", "stop", "kill", "wait", "rm", "inspect", "stats", "logs", "attach", "release"} {
		all[v] = "ask " + v
	}
	for _, v := range []string{"exec", "run", "shell", "inspect", "verify", "instance start", "instance run"} {
		all["apptainer "+v] = "file"
	}
	return all
}

// notApptainer is the condition for fish that a verb isn't Apptainer's of the same name, which takes files.
func notApptainer(verb string) string {
	if operands()["apptainer "+verb] == "" {
		return ""
	}
	return "; and not __fish_seen_subcommand_from apptainer"
}

// leafVerbs returns the verbs without subcommands, in order.
func leafVerbs(all []shownVerb) (flat []shownVerb) {
	for _, v := range all {
		if flat = append(flat, v); len(v.subs) > 0 {
			flat = append(flat[:len(flat)-1], leafVerbs(v.subs)...)
		}
	}
	return flat
}

// verbGroups returns the verbs with subcommands, in order.
func verbGroups(all []shownVerb) (groups []shownVerb) {
	for _, v := range all {
		if len(v.subs) > 0 {
			groups = append(append(groups, v), verbGroups(v.subs)...)
		}
	}
	return groups
}

// lastWord is of "cdi generate" the part that is typed last.
func lastWord(name string) string { return name[strings.LastIndexByte(name, ' ')+1:] }

// Requests and devices are asked of berth, which takes milliseconds; what it says to
// standard error isn't for a prompt.
const (
	askRequests = `printf '%s\n' 1 2 4 8 all; berth gpus 2>/dev/null | awk '$NF ~ /^(GPU|MIG)-/ { print $NF }'`
	askCDI      = `berth cdi list 2>/dev/null | awk 'NR > 1 { print $1 }'`
)

// ask is the command that says what could come behind a verb.
func ask(verb string) string { return "berth " + verb + " " + completionFlag + " 2>/dev/null" }

// bash renders the completion for bash.
func bash(app *cli.App) string {
	all := verbsOf("", app.Commands)
	var b strings.Builder
	b.WriteString("# bash completion for berth. make docs writes it from the code.\n\n" +
		"_berth() {\n\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb= i\n" +
		"\t# A flag and its value may be joined by =, which is a word of its own here.\n" +
		"\tif [ \"$cur\" = = ]; then cur=; elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi\n" +
		"\t# So it is with the colons in names of images, of which only the last part is replaced.\n" +
		"\tlocal whole=${COMP_LINE:0:COMP_POINT} there=\n\twhole=${whole##*[ =]}\n" +
		"\tcase $COMP_WORDBREAKS,$whole in *:*,*:*) there=${whole%:*}: cur=$whole ;; esac\n" +
		"\tfor ((i = 1; i < COMP_CWORD; i++)); do\n\t\tcase $verb,${COMP_WORDS[i]} in\n")
	ofAll := append(optionsOf("", app.Flags), option{names: []string{"--version", "-v"}})
	var valued []string
	for _, o := range ofAll {
		if o.value != "" {
			valued = append(valued, o.names...)
		}
	}
	fmt.Fprintf(&b, "\t\t%s) [ \"${COMP_WORDS[i + 1]}\" != = ] || ((i++)); ((i++)) ;;\n\t\t*,-* | *,=) ;;\n\t\t,*) verb=${COMP_WORDS[i]} ;;\n", patterns("", valued))
	for _, v := range verbGroups(all) {
		fmt.Fprintf(&b, "\t\t%s,*) verb=\"%s ${COMP_WORDS[i]}\" ;;\n", pattern(v.name), v.name)
	}
	b.WriteString("\t\tesac\n\tdone\n\tCOMPREPLY=()\n\tcase $verb,$prev in\n")
	for _, v := range append([]shownVerb{{flags: ofAll}}, leafVerbs(all)...) {
		for _, o := range v.flags {
			if o.value != "" {
				fmt.Fprintf(&b, "\t%s) %s; return ;;\n", patterns(v.name, o.names), bashValue(o.value))
			}
		}
	}
	b.WriteString("\tesac\n\tcase $verb,$cur in\n")
	fmt.Fprintf(&b, "\t,-*) %s ;;\n\t,*) %s ;;\n", bashWords(strings.Join(typed(ofAll), " ")), bashWords(strings.Join(names(all), " ")))
	for _, v := range verbGroups(all) {
		fmt.Fprintf(&b, "\t%s,-*) %s ;;\n\t%[1]s,*) %[3]s ;;\n", pattern(v.name), bashWords("--help"), bashWords(strings.Join(names(v.subs), " ")))
	}
	for _, v := range leafVerbs(all) {
		fmt.Fprintf(&b, "\t%s,-*) %s ;;\n", pattern(v.name), bashWords(strings.Join(typed(v.flags), " ")))
		if kind := operands()[v.name]; kind != "" {
			fmt.Fprintf(&b, "\t%s,*) %s ;;\n", pattern(v.name), bashValue(kind))
		}
	}
	b.WriteString("\tesac\n\tCOMPREPLY=(\"${COMPREPLY[@]#\"$there\"}\")\n}\n\ncomplete -F _berth berth\n")
	return b.String()
}

// typed are flags by all their names.
func typed(flags []option) (words []string) {
	for _, o := range flags {
		words = append(words, o.names...)
	}
	return words
}

func names(all []shownVerb) (words []string) {
	for _, v := range all {
		words = append(words, lastWord(v.name))
	}
	return words
}

// pattern is a verb in a pattern of case.
func pattern(name string) string {
	if strings.Contains(name, " ") {
		return `"` + name + `"`
	}
	return name
}

func patterns(name string, flags []string) string {
	var all []string
	for _, f := range flags {
		all = append(all, pattern(name)+","+f)
	}
	return strings.Join(all, " | ")
}

func bashWords(words string) string {
	return `mapfile -t COMPREPLY < <(compgen -W '` + words + `' -- "$cur")`
}

func bashValue(kind string) string {
	if verb, ok := strings.CutPrefix(kind, "ask "); ok {
		return `mapfile -t COMPREPLY < <(compgen -W "$(` + ask(verb) + `)" -- "$cur")`
	}
	switch kind {
	case "request":
		return `mapfile -t COMPREPLY < <(compgen -W "$(` + askRequests + `)" -- "$cur")`
	case "cdi":
		return `mapfile -t COMPREPLY < <(compgen -W "$(` + askCDI + `)" -- "$cur")`
	case "image":
		return `compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur"; compgen -W "$(` + ask("run") + `)" -- "$cur")`
	case "file":
		return `compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur")`
	case "directory":
		return `compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur")`
	case "text":
		return ":"
	}
	return bashWords(kind)
}

// zsh renders the completion for zsh.
func zsh(app *cli.App) string {
	var b strings.Builder
	b.WriteString("#compdef berth\n# zsh completion for berth. make docs writes it from the code.\n\n" +
		"_berth_of_requests() {\n\tlocal -a words=(${(f)\"$(" + askRequests + ")\"})\n\t_describe request words\n}\n\n" +
		"_berth_of_cdi() {\n\tlocal -a words=(${(f)\"$(" + askCDI + ")\"})\n\tcompadd -a words\n}\n\n" +
		"_berth_of_images() {\n\t_files\n\t_berth_of run\n}\n\n" +
		"_berth_of() {\n\tlocal -a words=(${(f)\"$(" + ask("${@[-1]}") + ")\"})\n\tcompadd -a words\n}\n\n")
	all := verbsOf("", app.Commands)
	for _, v := range all {
		zshVerb(&b, v)
	}
	zshVerb(&b, shownVerb{"", app.Usage, append(optionsOf("", app.Flags), option{names: []string{"--version", "-v"}, usage: "print the version"}), all})
	b.WriteString("_berth \"$@\"\n")
	return b.String()
}

// zshVerb writes the functions of a verb's subcommands, and then that of the verb.
func zshVerb(b *strings.Builder, v shownVerb) {
	for _, sub := range v.subs {
		if v.name != "" {
			zshVerb(b, sub)
		}
	}
	function := strings.TrimRight("_berth_"+strings.ReplaceAll(v.name, " ", "_"), "_")
	if len(v.subs) == 0 {
		fmt.Fprintf(b, "%s() {\n\t_arguments -S%s%s\n}\n\n", function, zshOptions(v.flags), zshOperand(v.name))
		return
	}
	fmt.Fprintf(b, "%s() {\n\tlocal state line\n\t_arguments -C%s \\\n\t\t'1: :->verb' '*:: :->rest'\n\tcase $state in\n\tverb)\n\t\tlocal -a verbs=(", function, zshOptions(v.flags))
	for _, sub := range v.subs {
		fmt.Fprintf(b, "\n\t\t\t%s", zshQuote(lastWord(sub.name)+":"+sub.usage))
	}
	b.WriteString("\n\t\t)\n\t\t_describe verb verbs\n\t\t;;\n\trest)\n\t\tcase $line[1] in\n")
	for _, sub := range v.subs {
		fmt.Fprintf(b, "\t\t%s) _berth_%s ;;\n", lastWord(sub.name), strings.ReplaceAll(sub.name, " ", "_"))
	}
	b.WriteString("\t\tesac\n\t\t;;\n\tesac\n}\n\n")
}

func zshOptions(flags []option) (text string) {
	escape := strings.NewReplacer("[", `\[`, "]", `\]`, ":", `\:`)
	for _, o := range flags {
		tail := "[" + escape.Replace(o.usage) + "]" + zshValue(o.value)
		for _, name := range o.names {
			mark := "" // what follows may be joined by = or be the next word
			if o.value != "" && strings.HasPrefix(name, "--") {
				mark = "="
			}
			if strings.Contains(o.usage, "can be repeated") {
				name = "*" + name
			}
			text += " \\\n\t\t" + zshQuote(name+mark+tail)
		}
	}
	return text
}

func zshOperand(name string) string {
	kind := operands()[name]
	if kind == "" {
		return ""
	}
	rest, which := "", "1"
	switch {
	case slices.Contains([]string{"run", "alloc", "exec"}, name):
		rest = " '*:: :_normal'"
	case strings.HasPrefix(kind, "ask "):
		which = "*"
	}
	return " \\\n\t\t" + zshQuote(which+zshValue(kind)) + rest
}

func zshValue(kind string) string {
	if verb, ok := strings.CutPrefix(kind, "ask "); ok {
		return ":task:_berth_of " + verb
	}
	switch kind {
	case "":
		return ""
	case "request":
		return ":request:_berth_of_requests"
	case "cdi":
		return ":device:_berth_of_cdi"
	case "image":
		return ":image:_berth_of_images"
	case "file":
		return ":file:_files"
	case "directory":
		return ":directory:_files -/"
	case "text":
		return ":value: "
	}
	return ":value:(" + kind + ")"
}

func zshQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// fishWords is what fish is told beside the library's rendering: the words behind a
// verb, and values of flags, that are asked of berth.
func fishWords(app *cli.App) string {
	var b strings.Builder
	for _, o := range optionsOf("", app.Flags) {
		b.WriteString(fishFlag("__fish_berth_no_subcommand", o))
	}
	for _, v := range leafVerbs(verbsOf("", app.Commands)) {
		seen := "__fish_seen_subcommand_from " + lastWord(v.name) + notApptainer(v.name)
		kind := operands()[v.name]
		switch words := fishValue(kind); {
		case kind == "image": // or a file
			fmt.Fprintf(&b, "complete -c berth -n '%s' -a '(%s)'\n", seen, ask(v.name))
		case words != "":
			fmt.Fprintf(&b, "complete -c berth -n '%s' -f -a '(%s)'\n", seen, words)
		}
		for _, o := range v.flags {
			b.WriteString(fishFlag(seen, o))
		}
	}
	return b.String()
}

// fishFlag is what can be behind a flag, "" if fish can't know.
func fishFlag(when string, o option) string {
	words := fishValue(o.value)
	switch {
	case words != "":
		words = "(" + words + ")"
	case slices.Contains([]string{"", "text", "file", "directory"}, o.value):
		return ""
	default:
		words = o.value
	}
	return fmt.Sprintf("complete -c berth -n '%s' -l %s -x -a '%s'\n", when, strings.TrimLeft(o.names[0], "-"), words)
}

// fishValue is the command that lists values of a kind, quoted; "" for others.
func fishValue(kind string) string {
	if verb, ok := strings.CutPrefix(kind, "ask "); ok {
		return ask(verb)
	}
	return strings.ReplaceAll(map[string]string{"request": askRequests, "cdi": askCDI}[kind], "'", `\'`)
}
