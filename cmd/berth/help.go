package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// example is a command line and what it does.
type example struct{ command, effect string }

// examples returns the examples of each verb, by its name behind "berth". Help and man
// page show them.
func examples() map[string][]example {
	return map[string][]example{
		"run": {
			{"berth run --gpus 1 ubuntu:24.04 nvidia-smi", "run a command with one free GPU"},
			{"berth run -it --gpus h100:2 -v /data:/data:ro pytorch bash", "a shell with two H100s and a directory"},
			{"berth run -d --name train --gpus 4 --wait=1h pytorch python train.py", "in the background; wait up to an hour for four GPUs"},
			{"berth run -n 2 --gpus-per-rank 4 pytorch python train.py", "a gang of two ranks with four GPUs each, on one lease and one network"},
		},
		"ps": {
			{"berth ps", "tasks that run"},
			{"berth ps --all", "those that have ended, too"},
		},
		"exec": {
			{"berth exec train nvidia-smi", "run a command in a task"},
			{"berth exec -it train bash", "a shell in a task"},
		},
		"apptainer exec": {
			{"berth apptainer exec --nv pytorch.sif python train.py", "run a command with one free GPU"},
			{"berth apptainer exec --gpus 2 -B /data:/data:ro pytorch.sif python train.py", "two GPUs, and a directory of the host"},
			{"berth apptainer exec --nv docker://nvcr.io/nvidia/pytorch:24.05-py3 python train.py", "an image of a registry"},
		},
		"apptainer run":   {{"berth apptainer run --nv pytorch.sif resnet50", "run what the image was made for"}},
		"apptainer shell": {{"berth apptainer shell --nv pytorch.sif", "a shell with one free GPU"}},
		"apptainer instance start": {
			{"berth apptainer instance start --nv server.sif web", "start an image's service with one free GPU"},
			{"berth apptainer instance start -B /data:/data:ro db.sif db", "without devices; berth apptainer exec instance://db runs a command in it"},
		},
		"apptainer instance run":  {{"berth apptainer instance run --nv pytorch.sif trainer resnet50", "run what the image was made for in the background"}},
		"apptainer instance list": {{"berth apptainer instance list --logs", "where the output of instances is"}},
		"apptainer instance stop": {{"berth apptainer instance stop 'train*'", "end all instances of these names"}},
		"apptainer pull":          {{"berth apptainer pull docker://debian:13", "get the newest image of a name"}, {"berth apptainer pull oras://ghcr.io/team/app:1", "write app_1.sif"}},
		"apptainer verify":        {{"berth apptainer verify pytorch.sif", "show who has signed an image, and whether it is as it was signed"}},
		"apptainer key":           {{"berth apptainer key import team.asc", "trust the keys of a file"}, {"berth apptainer key list", "show the keys that are trusted"}},
		"apptainer inspect":       {{"berth apptainer inspect --runscript pytorch.sif", "what berth apptainer run would run"}},
		"stop":                    {{"berth stop train", "ask a task to end, and kill it after its grace period"}},
		"kill":                    {{"berth kill --signal HUP train", "send a signal to a task"}},
		"wait":                    {{"berth wait train", "wait for the end of a task, and print its exit code"}},
		"rm":                      {{"berth rm train", "remove a task that has ended"}, {"berth rm --force train", "end it first"}},
		"logs":                    {{"berth logs --follow train", "print what a task writes, until it ends"}},
		"attach":                  {{"berth attach train", "connect this terminal with a task"}},

		"nvidia-container-cli info":      {{"berth nvidia-container-cli info --csv", "the driver's versions and the lease's GPUs, for scripts"}},
		"nvidia-container-cli list":      {{"berth nvidia-container-cli list --device=all", "the nodes of the lease's devices"}},
		"nvidia-container-cli configure": {{"berth nvidia-container-cli configure --device=all --utility /root/fs", "mount these devices and the driver's programs in a container"}},

		"inspect": {
			{"berth inspect train", "all that is known of a task, as JSON"},
			{"berth inspect -f '{{.State.Pid}}' train", "one field of it, by a Go template"},
			{"berth inspect --why train", "what berth has changed in its container, and why"},
		},
		"stats": {{"berth stats", "watch what tasks use of CPUs, memory and GPUs"}},
		"alloc": {
			{"berth alloc 2 ./train.sh", "run a command of the host with two GPUs"},
			{"berth alloc --wait=10m h100:4 bash", "a shell with four H100s; wait up to ten minutes for them"},
		},
		"map": {
			{"berth map --gpus 1 -- python train.py --lr {} ::: 0.1 0.01 0.001", "three tasks, each with a GPU of its own"},
			{"berth map --gpus 1 -a files.txt --retries 2 -- ./convert.sh {} {/.}.png", "a task for each line of a file; failed ones are tried twice more"},
			{"berth map --gpus 2 -v /data:/data pytorch/pytorch python train.py {1} {2} ::: a b ::: 1 2", "four containers with two GPUs each"},
		},
		"batch": {
			{"berth batch experiments.yaml", "run the tasks of a file"},
			{"berth batch --resume experiments", "go on with a batch that was interrupted or killed"},
		},
		"batches list": {{"berth batches list", "one's batches, the newest first"}},
		"batches show": {
			{"berth batches show experiments", "state, GPU, time and exit code of each task"},
			{"berth batches show --csv experiments > results.csv", "the same as a table for other programs"},
			{"berth batches show --svg timeline.svg experiments", "a picture: which task had which GPU when"},
		},
		"batches stop": {{"berth batches stop experiments", "start no more tasks, and wait for those that run"}},
		"batches wait": {{"berth batches wait experiments", "until its tasks have ended; the exit code is 0 if all have succeeded"}},
		"batches rm":   {{"berth batches rm experiments", "remove a batch with the output of its tasks"}},
		"adopt": {
			{"berth adopt 4711", "give a running process the lease of the GPUs that it uses"},
			{"berth adopt 4711 2", "give it two GPUs"},
			{"berth adopt --export $$ 1", "give this shell a GPU, and print what it has to eval"},
		},
		"pull": {{"berth pull nvcr.io/nvidia/pytorch:24.01-py3", "copy an image from its registry"}},
		"login": {
			{"berth login nvcr.io", "ask for user name and password, and store them"},
			{"berth login -u ci --password-stdin registry.example < token", "in a script"},
		},
		"logout":       {{"berth logout nvcr.io", "remove the stored login"}},
		"images":       {{"berth images", "images that are here"}},
		"rmi":          {{"berth rmi ubuntu:24.04", "remove an image"}},
		"prune":        {{"berth prune", "remove what nothing uses"}, {"berth prune --all", "images that no task uses, too"}},
		"system df":    {{"berth system df -v", "which image and which task fills the disk"}},
		"system prune": {{"berth system prune --filter until=24h", "remove what is left of tasks that ended a day ago"}},
		"gpus":         {{"berth gpus", "GPUs, their state and who holds them"}, {"berth gpus --watch", "the same, every two seconds"}, {"berth gpus --json", "the same for programs"}},
		"topo":         {{"berth topo", "how GPUs and NICs are connected"}, {"berth topo --no-trunc", "the whole matrix, however wide"}},
		"leases":       {{"berth leases", "who holds which devices"}, {"berth leases --watch", "the same, every two seconds"}},
		"release": {
			{"berth release train", "end a task or container and its lease, after a question"},
			{"berth release --force 3f2a", "a lease, task or container by the beginning of its id, without a question"},
		},
		"cdi generate":     {{"berth cdi generate", "offer berth/gpus=1 and the like to engines"}},
		"cdi list":         {{"berth cdi list", "devices of all CDI specs of this host"}},
		"cdi validate":     {{"berth cdi validate /etc/cdi/nvidia.json", "check a spec"}},
		"cdi remove":       {{"berth cdi remove", "remove berth's specs"}},
		"discover":         {{"berth discover", "take the inventory of this host"}},
		"repair":           {{"berth repair", "rebuild a damaged ledger from the receipts of its leases"}},
		"setup docker":     {{"berth setup docker --dry-run", "show what would change"}, {"berth setup docker --default", "make berth docker's default runtime"}},
		"setup containerd": {{"berth setup containerd", "add the runtime class berth"}, {"berth setup containerd --remove", "undo it"}},
		"setup podman":     {{"berth setup podman", "add the runtime berth"}, {"berth setup podman --remove", "undo it"}},
		"guard on":         {{"berth guard on", "from now on only leases open GPUs"}},
		"guard off":        {{"berth guard off", "every process opens GPUs again"}},
		"guard status":     {{"berth guard status", "whether it is on, and for how many leases"}, {"berth guard status --json", "the same for programs"}},
		"info":             {{"berth info", "runtime, directories, driver, and how many devices are free"}},
		"version":          {{"berth version", "this program's version"}},
		"doctor":           {{"berth doctor", "check this host"}, {"berth doctor --json", "the same for programs"}},
	}
}

// addExamples adds to the help of each verb its examples, which are among all. above is the name of the
// parent verb with a space, "" for none.
func addExamples(all map[string][]example, above string, verbs []*cli.Command) []*cli.Command {
	for _, v := range verbs {
		addExamples(all, above+v.Name+" ", v.Subcommands)
		if list := all[above+v.Name]; len(list) > 0 {
			v.CustomHelpTemplate = cli.CommandHelpTemplate + "\nEXAMPLES:\n" + exampleLines(list, "   ")
		}
	}
	return verbs
}

// exampleLines returns two lines for each example: its effect, and below that the command.
func exampleLines(list []example, indent string) string {
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "%s# %s\n%s%s\n", indent, e.effect, indent, e.command)
	}
	return b.String()
}
