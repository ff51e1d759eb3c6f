package apptainer

import (
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/waiting"
)

// listFlags returns the flags that are Apptainer's that have the same meaning here, and berth's for devices.
func listFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "gpus", Usage: "lease the devices of `REQUEST`: 2, or a request of berth alloc"},
		&cli.StringSliceFlag{Name: "device", Usage: "lease the device of the CDI name `VENDOR/CLASS=NAME`; several with commas"},
		&cli.BoolFlag{Name: "nv", Usage: "lease one GPU, unless --gpus asks for others"},
		&cli.BoolFlag{Name: "nvccli", Usage: "the same as --nv"},
		&cli.BoolFlag{Name: "rocm", Hidden: true},
		&cli.StringSliceFlag{Name: "bind", Aliases: []string{"B"}, Usage: "bind `SRC[:DST[:OPTIONS]]`; several with commas"},
		&cli.StringSliceFlag{Name: "mount", Usage: "bind `type=bind,src=SRC,dst=DST[,ro]`"},
		&cli.StringFlag{Name: "home", Aliases: []string{"H"}, Usage: "use `SRC[:DST]` as home directory"},
		&cli.BoolFlag{Name: "no-home", Usage: "don't bind the home directory"},
		&cli.StringSliceFlag{Name: "no-mount", Usage: "leave out mounts: `NAME` is proc, sys, dev, tmp, home, cwd, bind-paths or a path; several with commas"},
		&cli.StringFlag{Name: "pwd", Aliases: []string{"cwd"}, Usage: "set the working directory to `DIR`"},
		&cli.BoolFlag{Name: "contain", Aliases: []string{"c"}, Usage: "have an empty home, /tmp and /var/tmp"},
		&cli.BoolFlag{Name: "containall", Aliases: []string{"C"}, Usage: "have --contain, --pid, --ipc and --cleanenv"},
		&cli.BoolFlag{Name: "compat", Usage: "have --containall, --no-init, --no-umask, --no-eval and --writable-tmpfs"},
		&cli.BoolFlag{Name: "cleanenv", Aliases: []string{"e"}, Usage: "have none of the host's environment variables"},
		&cli.StringSliceFlag{Name: "env", Usage: "set an environment variable: `NAME=VALUE`; several with commas"},
		&cli.StringFlag{Name: "env-file", Usage: "read environment variables from `FILE`"},
		&cli.BoolFlag{Name: "no-eval", Usage: "don't expand values of environment variables"},
		&cli.BoolFlag{Name: "writable-tmpfs", Usage: "keep changes of the image's files in memory until the end"},
		&cli.StringSliceFlag{Name: "overlay", Aliases: []string{"o"}, Usage: "lay the directory or file `PATH[:ro]` over the image; without :ro it keeps changes; several with commas"},
		&cli.StringSliceFlag{Name: "scratch", Aliases: []string{"S"}, Usage: "have an empty directory `DIR`; several with commas"},
		&cli.StringFlag{Name: "workdir", Aliases: []string{"W"}, Usage: "put scratch directories, and with --contain home, /tmp and /var/tmp, in `DIR`"},
		&cli.BoolFlag{Name: "fakeroot", Aliases: []string{"f"}, Usage: "be root in the container, mapped to this user on the host"},
		&cli.BoolFlag{Name: "writable", Aliases: []string{"w"}, Usage: "write to an image that is a directory"},
		&cli.BoolFlag{Name: "unsquash", Usage: "unpack a SIF file into berth's store instead of mounting it"},
		&cli.BoolFlag{Name: "no-privs", Hidden: true},                       // as always
		&cli.BoolFlag{Name: "userns", Aliases: []string{"u"}, Hidden: true}, // as always
		&cli.StringFlag{Name: "drop-caps", Hidden: true},                    // there are none
		&cli.BoolFlag{Name: "underlay", Hidden: true},                       // how mount points are made makes no difference
		&cli.BoolFlag{Name: "disable-cache", Hidden: true},
		&cli.BoolFlag{Name: "tmp-sandbox", Hidden: true}, &cli.BoolFlag{Name: "no-tmp-sandbox", Hidden: true},
		&cli.BoolFlag{Name: "ignore-subuid", Hidden: true}, &cli.BoolFlag{Name: "ignore-userns", Hidden: true}, &cli.BoolFlag{Name: "ignore-fakeroot-command", Hidden: true},
		&cli.BoolFlag{Name: "ipc", Aliases: []string{"i"}, Usage: "share no System V IPC and message queues with the host"},
		&cli.BoolFlag{Name: "uts", Usage: "have a host name of its own"},
		&cli.BoolFlag{Name: "pid", Aliases: []string{"p"}, Usage: "see no processes of the host"},
		&cli.BoolFlag{Name: "no-init", Usage: "with --pid, have the command as the first process"},
		&cli.BoolFlag{Name: "no-pid", Hidden: true}, // without effect, as there
		&cli.BoolFlag{Name: "net", Aliases: []string{"n"}, Usage: "have a network of its own, with --network none"},
		&cli.StringFlag{Name: "network", Usage: "have the network `NAME`: none, which has only the interface lo"},
		&cli.StringFlag{Name: "hostname", Usage: "have the host name `NAME`"},
		&cli.BoolFlag{Name: "no-umask", Usage: "have the umask 0022"},
		&cli.StringFlag{Name: "app", Usage: "use the image's app `NAME`"},
		&cli.StringFlag{Name: "shell", Aliases: []string{"s"}, Usage: "let the verb shell run `PATH`"},
		&cli.StringSliceFlag{Name: "dns", Usage: "resolve names with `ADDRESS`; several with commas"},
	}, append(refusedFlags(), waiting.Flags()...)...)
}

// refusal is a flag of Apptainer's that berth has not, and why.
type refusal struct {
	name    string
	aliases []string
	value   bool
	reason  string
}

func listRefusals() []refusal {
	const (
		limits   = "there are no limits of one command's own: systemd-run --user --scope -p MemoryMax=8G berth apptainer … sets them, and berth run has --memory and --cpus"
		networks = "there is only --network none; without it a command has the host's network"
		login    = "berth login REGISTRY stores credentials"
	)
	return []refusal{
		{"memory", nil, true, limits},
		{"memory-reservation", nil, true, limits},
		{"memory-swap", nil, true, limits},
		{"oom-kill-disable", nil, false, limits},
		{"cpus", nil, true, limits},
		{"cpu-shares", nil, true, limits},
		{"cpuset-cpus", nil, true, limits},
		{"cpuset-mems", nil, true, limits},
		{"blkio-weight", nil, true, limits},
		{"blkio-weight-device", nil, true, limits},
		{"pids-limit", nil, true, limits},
		{"apply-cgroups", nil, true, limits},
		{"network-args", nil, true, networks},
		{"netns-path", nil, true, networks},
		{"sharens", nil, false, "commands in an instance share its namespaces: berth apptainer instance start IMAGE NAME, and exec instance://NAME"},
		{"fusemount", nil, true, "no file system is mounted for an image; one that is mounted on the host can be bound by --bind"},
		{"docker-login", nil, false, login},
		{"docker-username", nil, true, login},
		{"docker-password", nil, true, login},
		{"authfile", nil, true, login},
		{"no-https", []string{"nohttps"}, false, "server = \"http://REGISTRY\" in /etc/containerd/certs.d/REGISTRY/hosts.toml allows a registry without TLS"},
		{"keep-privs", nil, false, "a process of an image has no rights that its user hasn't"},
		{"add-caps", nil, true, "a process of an image has no rights that its user hasn't"},
		{"allow-setuid", nil, false, "a process of an image has no rights that its user hasn't"},
		{"security", nil, true, "a command has its caller's user id and SELinux and AppArmor labels, and no seccomp filter"},
		{"pem-path", nil, true, "encrypted images can't be run"},
		{"passphrase", nil, false, "encrypted images can't be run"},
	}
}

func refusedFlags() (all []cli.Flag) {
	for _, r := range listRefusals() {
		if r.value {
			all = append(all, &cli.StringFlag{Name: r.name, Aliases: r.aliases, Hidden: true})
		} else {
			all = append(all, &cli.BoolFlag{Name: r.name, Aliases: r.aliases, Hidden: true})
		}
	}
	return all
}
