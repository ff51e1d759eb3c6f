package task

import (
	"cmp"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// printFormatted prints each of the objects by a template of --format, whose fields are those of the
// JSON and docker's.
func (i inspector) printFormatted(w io.Writer, format string, found []inspected) error {
	if format == "json" {
		return output.PrintJSON(w, found)
	}
	tmpl, err := output.ParseTemplate(format, output.TemplateFuncs())
	if err != nil {
		return err
	}
	for _, one := range found {
		data, err := i.fieldsOf(one)
		if err == nil {
			err = output.PrintTemplate(w, tmpl, format, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (i inspector) fieldsOf(one inspected) (map[string]any, error) {
	decoded, err := output.DecodeFields(one)
	if err != nil {
		return nil, err
	}
	all, ok := decoded.(map[string]any)
	if !ok {
		return nil, errors.New("the inspected value is no JSON object")
	}
	switch {
	case one.Task != nil:
		maps.Copy(all, i.dockerFields(*one.Task))
	case one.Lease != nil:
		all["Id"], all["Name"] = cmp.Or(one.Lease.Owner.Container, one.Lease.ID), "/"+one.name()
	}
	return all, nil
}

// dockerFields returns the fields of docker inspect that a task has values for, with docker's names
// and formats.
func (i inspector) dockerFields(t inspectedTask) map[string]any {
	c := t.Container
	if c == nil {
		c = &inspectedContainer{Args: t.Command}
	}
	command := append(slices.Clone(c.Args), "") // Args may be empty
	mounts := []map[string]any{}
	for _, m := range hostMounts(i.store, c.Mounts) {
		mounts = append(mounts, map[string]any{
			"Type": m.Type, "Source": m.Source, "Destination": m.Destination, "RW": !slices.Contains(m.Options, "ro"),
		})
	}
	address := map[string]any{"IPAddress": "", "Gateway": "", "MacAddress": ""} // docker's values for the host's network
	network := maps.Clone(address)
	network["Ports"], network["Networks"] = map[string]any{}, map[string]any{c.Network: address}
	return map[string]any{
		"Id": t.ID, "Name": "/" + t.Name, "Created": formatInstant(&t.Created), "Platform": "linux", "Driver": "overlay2",
		"Path": command[0], "Args": c.Args[min(1, len(c.Args)):], "Image": cmp.Or(t.Digest, t.Image),
		"RestartCount": t.State.Restarts, "LogPath": t.Paths.Log, "State": t.State.dockerFields(), "Mounts": mounts,
		"NetworkSettings": network,
		"Config": map[string]any{
			"Hostname": c.Hostname, "User": c.User, "Tty": t.Terminal, "OpenStdin": t.Interactive, "Env": c.Env,
			"Cmd": c.Args, "Image": t.Image, "WorkingDir": c.Dir, "Labels": t.Labels,
		},
		"HostConfig": c.dockerHostConfig(t.Record, hostMounts(i.store, c.Mounts)),
	}
}

func dereference[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (s inspectedState) dockerFields() map[string]any {
	return map[string]any{
		"Status": s.Status, "Running": s.Running, "Paused": false, "Restarting": s.Status == string(tasks.Restarting),
		"Dead": s.Status == string(tasks.Lost), "OOMKilled": s.OOM, "Pid": s.PID, "ExitCode": dereference(s.Code), "Error": s.Error, "Health": nil,
		"StartedAt": formatInstant(s.Started), "FinishedAt": formatInstant(s.Finished),
	}
}

// formatInstant prints a time in the format of docker inspect.
func formatInstant(t *time.Time) string { return dereference(t).UTC().Format(time.RFC3339Nano) }

// inspectFormatFlag returns --format of berth inspect.
func inspectFormatFlag() cli.Flag {
	return &cli.StringFlag{Name: "format", Aliases: []string{"f"}, Usage: "print by a Go `TEMPLATE`, as docker inspect does: '{{.State.Pid}}' or json"}
}
