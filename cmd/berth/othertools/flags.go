// Package othertools has flags and verbs of docker, podman, nerdctl, Apptainer and Slurm that berth doesn't have, each with the
// berth command or flag to use instead. Errors about a wrong command line print them. The tables hold nothing
// that berth has; tests of package main compare them with its verbs.
//
// A text about a flag that begins with "isn't needed: " is printed behind the flag, all others behind
// "there is no FLAG: ".
package othertools

import "strings"

// Flags returns the tables of other tools' flags for a verb of berth. Those before all verbs are of "berth".
func Flags(verb string) []map[string]string {
	switch verb {
	case "run":
		return []map[string]string{DockerFlags()["run"], apptainerFlags(), slurmFlags(), podmanRunFlags()}
	case "exec":
		return []map[string]string{DockerFlags()["exec"], apptainerExecFlags(), otherFlags("exec")}
	case "alloc":
		return []map[string]string{allocFlags()}
	case "berth":
		return []map[string]string{globalFlags()}
	}
	return []map[string]string{DockerFlags()[verb], otherFlags(verb)}
}

// ExplainFlag returns the explanation of a flag of another tool that a verb of berth doesn't have, "" if none of
// them has it.
func ExplainFlag(verb, flag string) string {
	name := strings.TrimLeft(flag, "-")
	if long, ok := dockerShortFlags(verb)[name]; ok {
		name = long
	}
	for _, flags := range Flags(verb) {
		if why, ok := flags[name]; ok {
			flag := strings.Repeat("-", min(2, len(name))) + name
			if strings.HasPrefix(why, "isn't needed: ") {
				return flag + " " + why
			}
			return "there is no " + flag + ": " + why
		}
	}
	return ""
}
