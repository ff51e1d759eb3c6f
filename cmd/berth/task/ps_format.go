package task

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// taskColumns returns docker's fields of ps --format, and berth's own.
func taskColumns() []output.Column {
	return []output.Column{
		{Name: "ID", Heading: "CONTAINER ID"},
		{Name: "Names", Heading: "NAMES"},
		{Name: "Image", Heading: "IMAGE"},
		{Name: "Command", Heading: "COMMAND"},
		{Name: "CreatedAt", Heading: "CREATED AT"},
		{Name: "RunningFor", Heading: "CREATED"},
		{Name: "Status", Heading: "STATUS"},
		{Name: "State", Heading: "STATE"},
		{Name: "Ports", Heading: "PORTS"},
		{Name: "Size", Heading: "SIZE"},
		{Name: "Labels", Heading: "LABELS"},
		{Name: "Mounts", Heading: "MOUNTS"},
		{Name: "LocalVolumes", Heading: "LOCAL VOLUMES"},
		{Name: "Networks", Heading: "NETWORKS"},
		{Name: "GPUs", Heading: "GPUS"},
		{Name: "Lease", Heading: "LEASE"},
		{Name: "User", Heading: "USER"},
	}
}

// printFormatted prints the tasks by a template of --format.
func (l listing) printFormatted(ctx context.Context, w io.Writer, format string, k backend.Tasks) error {
	asksFor := func(name string) bool {
		return format == "json" || strings.Contains(format, "json .") || strings.Contains(format, "."+name)
	}
	rows := make([]output.Fields, 0, len(l.tasks))
	for _, t := range l.tasks {
		row := l.fieldsOf(t)
		if t.Unread {
			rows = append(rows, row)
			continue
		}
		if asksFor("Mounts") || asksFor("Networks") {
			row["Mounts"], row["Networks"] = l.showMounts(k, t.Task)
		}
		if asksFor("Size") {
			size, err := k.Size(ctx, t.ID)
			if err != nil {
				return err
			}
			row["Size"] = output.FormatSize(size.Written)
		}
		rows = append(rows, row)
	}
	return output.PrintRows(w, format, taskColumns(), rows)
}

// fieldsOf returns the fields of a task that follow from its record.
func (l listing) fieldsOf(t listed) output.Fields {
	f := output.Fields{}
	for _, c := range taskColumns() {
		f[c.Name] = ""
	}
	f["ID"], f["State"], f["Labels"] = t.ID, string(t.State), output.Labels(t.Labels)
	if t.State == tasks.Broken {
		f["Status"] = t.String()
		return f
	}
	// Docker quotes words with spaces.
	t.Command = slices.Clone(t.Command)
	for i, word := range t.Command {
		if strings.Contains(word, " ") {
			t.Command[i] = "'" + word + "'"
		}
	}
	f["Names"], f["Image"], f["Command"] = t.Name, t.Image, l.showCommand(t)
	f["CreatedAt"], f["RunningFor"] = t.Created.Local().Format(output.TimeFormat), output.FormatAge(t.Created, l.now)+" ago"
	f["Status"], f["GPUs"], f["Lease"] = output.FormatStatus(t.Task, l.now), strings.Join(t.GPUs, ","), t.Lease
	f["LocalVolumes"], f["User"] = "0", t.UserName
	return f
}

// showMounts returns the directories of the host in a task's container, and its network; "" if the
// bundle is gone.
func (l listing) showMounts(k backend.Tasks, t tasks.Task) (mounts, network string) {
	spec, err := readSpec(filepath.Join(k.Path(t.ID, "bundle"), "config.json"))
	if err != nil {
		return "", ""
	}
	var sources []string
	for _, m := range hostMounts(k, spec.Mounts) {
		sources = append(sources, l.shorten(m.Source, 15))
	}
	return strings.Join(sources, ","), networkOf(spec)
}
