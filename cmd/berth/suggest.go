package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/internal/spell"
)

// didYouMean is the nearest word as the end of a sentence, or "".
func didYouMean(word string, known []string) string { return spell.Suggestion(word, known...) }

// instead is what serves in place of verbs that people know from other programs, and
// that are near to none of berth's.
func instead() map[string]string {
	const (
		anew    = "a task begins with a fresh root each time: berth stop ends it, berth run begins another, and --restart does so by itself"
		build   = "berth makes no images: docker build, podman build and buildah do, and berth run takes what they make"
		login   = "berth pull uses what docker login and podman login have kept"
		network = "a task has the host's network, or none: berth run --network"
		volume  = "directories of the host are the volumes: berth run -v DIR:DST"
		files   = "berth run -v DIR:DST shares files with a task, and berth exec -i TASK tar copies them"
		shell   = "berth exec -it TASK bash"
		pause   = "what is paused would keep its GPUs; berth stop ends a task"
		list    = "berth ps -a"
	)
	return map[string]string{
		"build": build, "buildx": build, "commit": build, "tag": build, "push": build, "import": build,
		"compose": "each service is a berth run -d", "up": "each service is a berth run -d", "down": "berth stop and berth rm",
		"ls": list, "list": list, "status": list,
		"cp": files, "diff": files, "export": files,
		"create": "berth run -d makes a task and starts it", "start": anew, "restart": anew, "rename": "berth run --name gives a task its name",
		"shell":  shell,
		"events": "the log of events is events.log in berth's data directory", "history": "skopeo inspect shows an image's layers", "info": "berth doctor", "version": "berth --version",
		"load": "berth run docker-archive:FILE takes an archive as it is", "save": "skopeo copy writes archives",
		"login": login, "logout": login, "search": "the registry's own pages search it",
		"network": network, "port": network, "volume": volume,
		"nvidia-smi": "berth gpus", "smi": "berth gpus",
		"pause": pause, "unpause": pause,
		"remove": "berth rm", "delete": "berth rm", "top": "berth stats, or berth exec TASK ps", "update": "limits are those of berth run",
	}
}

// twoWords are docker's verbs above others, and what these are here where that isn't the
// same word. "" is for the group alone.
func twoWords() map[string]map[string]string {
	return map[string]map[string]string{
		"container": {"": "ps -a", "ls": "ps -a", "list": "ps -a", "prune": "rm", "top": "stats"},
		"image":     {"": "images", "ls": "images", "list": "images", "rm": "rmi", "remove": "rmi"},
		"system":    {"": "doctor", "df": "images", "info": "doctor"},
	}
}

// meant says what a verb that doesn't exist, and the word behind it, were meant to be, as
// the end of a sentence.
func meant(app *cli.App, name, next string) string {
	if verbs, is := twoWords()[name]; is {
		switch verb := verbs[next]; {
		case verb != "":
			return ": berth " + verb
		case app.Command(next) != nil:
			return ": berth " + next
		case instead()[next] != "":
			name = next
		default:
			return ": berth " + verbs[""]
		}
	}
	if serves, known := instead()[name]; known {
		return ": " + serves
	}
	return didYouMean(name, verbs(app))
}

func verbs(app *cli.App) (names []string) {
	for _, c := range app.VisibleCommands() {
		names = append(names, c.Name)
	}
	return names
}

// longNames lists flags as they are typed.
func longNames(flags []cli.Flag) (names []string) {
	for _, f := range flags {
		for _, name := range f.Names() {
			if len(name) > 1 {
				names = append(names, "--"+name)
			}
		}
	}
	return names
}
