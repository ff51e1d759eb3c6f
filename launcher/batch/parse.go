package batch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/launcher/spec"
	"go.yaml.in/yaml/v3"
)

// File is a batch file in YAML. Its schema is in docs/reference/batch.schema.json.
type File struct {
	// Name, Jobs, MaxFails and FailFast are those of [Batch].
	Name     string `yaml:"name"`
	Jobs     int    `yaml:"jobs"`
	MaxFails int    `yaml:"max_fails"`
	FailFast bool   `yaml:"fail_fast"`
	// Defaults are what each task has unless it says otherwise.
	Defaults FileTask            `yaml:"defaults"`
	Tasks    map[string]FileTask `yaml:"tasks"`
	// order is that of the tasks in the file.
	order []string
}

// FileTask is an entry of a batch file: one task, or with a matrix or an array one for each element.
type FileTask struct {
	Image   string  `yaml:"image"`
	Command command `yaml:"command"`
	// GPUs is a request.
	GPUs    string            `yaml:"gpus"`
	Env     map[string]string `yaml:"env"`
	Volumes []string          `yaml:"volumes"`
	Workdir string            `yaml:"workdir"`
	Timeout string            `yaml:"timeout"`
	Retries *int              `yaml:"retries"`
	// After are names of entries, all of whose tasks have to succeed first.
	After words `yaml:"after"`
	// Array makes N tasks, with {index} from 0 to N-1.
	Array int `yaml:"array"`
	// Matrix makes a task for each combination of values.
	Matrix yaml.Node `yaml:"matrix"`
}

// command is a list of words, or one text that a shell reads.
type command struct {
	words words
	text  bool
}

// UnmarshalYAML takes a list, or a text.
func (c *command) UnmarshalYAML(n *yaml.Node) error {
	c.text = n.Kind == yaml.ScalarNode
	return c.words.UnmarshalYAML(n)
}

// words is a list of words, or one word.
type words []string

// UnmarshalYAML takes a list, or a word.
func (w *words) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*w = words{n.Value}
		return nil
	}
	return n.Decode((*[]string)(w))
}

// ParseFile reads a batch file. Errors name the line. The batch has no directory yet, and its requests are as they are in the file.
func ParseFile(r io.Reader) (*Batch, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var f File
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it has no tasks")
		}
		return nil, errors.New(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n  ", ""))
	}
	if f.order, err = orderOfTasks(text); err != nil {
		return nil, err
	}
	return f.expandTasks()
}

// orderOfTasks returns the names of the tasks in the order of the file, which a map doesn't keep.
func orderOfTasks(text []byte) (names []string, err error) {
	var top struct {
		Tasks yaml.Node `yaml:"tasks"`
	}
	if err := yaml.Unmarshal(text, &top); err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(top.Tasks.Content); i += 2 {
		names = append(names, top.Tasks.Content[i].Value)
	}
	if names == nil {
		return nil, errors.New("it has no tasks")
	}
	return names, nil
}

func (f File) expandTasks() (*Batch, error) {
	b := &Batch{Name: f.Name, Slots: f.Jobs, MaxFails: f.MaxFails, FailFast: f.FailFast, Backoff: time.Second}
	numbers := map[string][]int{}
	for _, name := range f.order {
		entry := f.Tasks[name].withDefaults(f.Defaults)
		rows, err := entry.expandRows()
		if err == nil {
			err = entry.appendTasks(b, name, rows)
		}
		if err != nil {
			return nil, fmt.Errorf("task %s: %w", name, err)
		}
		for n := len(b.Tasks) - len(rows) + 1; n <= len(b.Tasks); n++ {
			numbers[name] = append(numbers[name], n)
		}
	}
	for _, name := range f.order {
		for _, before := range f.Tasks[name].withDefaults(f.Defaults).After {
			if numbers[before] == nil {
				return nil, fmt.Errorf("task %s: after: there is no task %q; there are %s", name, before, strings.Join(f.order[:min(len(f.order), 20)], ", "))
			}
			if pairs := len(numbers[name]) * len(numbers[before]); pairs > maxTasks {
				return nil, fmt.Errorf("task %s: after: %d of its tasks wait for %d of %s: put a task between them that waits for all of these", name, len(numbers[name]), len(numbers[before]), before)
			}
			for _, n := range numbers[name] {
				b.Tasks[n-1].After = append(b.Tasks[n-1].After, numbers[before]...)
			}
		}
	}
	return b, b.Check()
}

// withDefaults returns the entry with the defaults in the place of what it doesn't have. Variables are joined.
func (t FileTask) withDefaults(d FileTask) FileTask {
	setDefault(&t.Image, d.Image)
	setDefault(&t.GPUs, d.GPUs)
	setDefault(&t.Workdir, d.Workdir)
	setDefault(&t.Timeout, d.Timeout)
	setDefault(&t.Retries, d.Retries)
	setDefault(&t.Array, d.Array)
	if t.Command.words == nil {
		t.Command = d.Command
	}
	if t.Volumes == nil {
		t.Volumes = d.Volumes
	}
	if t.After == nil {
		t.After = d.After
	}
	if t.Matrix.Kind == 0 {
		t.Matrix = d.Matrix
	}
	env := maps.Clone(d.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, t.Env)
	t.Env = env
	return t
}

func setDefault[T comparable](value *T, other T) {
	var zero T
	if *value == zero {
		*value = other
	}
}

// expandRows returns the arguments of each of the entry's tasks.
func (t FileTask) expandRows() (rows []Row, err error) {
	rows = []Row{{}}
	if t.Matrix.Kind != 0 {
		if t.Matrix.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("line %d: a matrix is a list of values for each name, such as {lr: [0.1, 0.01]}", t.Matrix.Line)
		}
		var sources []Source
		for i := 0; i+1 < len(t.Matrix.Content); i += 2 {
			name, list := t.Matrix.Content[i].Value, t.Matrix.Content[i+1]
			if list.Kind != yaml.SequenceNode {
				return nil, fmt.Errorf("line %d: %s: a matrix has a list of values for each name", list.Line, name)
			}
			var s Source
			for _, value := range list.Content {
				if value.Kind != yaml.ScalarNode {
					return nil, fmt.Errorf("line %d: %s: the values of a matrix are texts and numbers", value.Line, name)
				}
				s.Rows = append(s.Rows, Row{Names: []string{name}, Values: []string{value.Value}})
			}
			sources = append(sources, s)
		}
		if rows, err = Combine(sources); err != nil {
			return nil, err
		}
	}
	switch {
	case t.Array < 0 || t.Array > maxTasks/len(rows):
		return nil, fmt.Errorf("array: %d isn't a number of tasks", t.Array)
	case t.Array > 0:
		var each Source
		for i := range t.Array {
			each.Rows = append(each.Rows, Row{Names: []string{"index"}, Values: []string{fmt.Sprint(i)}})
		}
		return Combine([]Source{{Rows: rows}, each})
	}
	return rows, nil
}

// appendTasks appends the entry's tasks to the batch.
func (t FileTask) appendTasks(b *Batch, name string, rows []Row) error {
	timeout := time.Duration(0)
	if t.Timeout != "" {
		var err error
		if timeout, err = spec.ParseTime(t.Timeout); err != nil {
			return fmt.Errorf("timeout: %q is %w", t.Timeout, err)
		}
	}
	retries := 0
	if t.Retries != nil {
		retries = *t.Retries
	}
	if len(t.Command.words) == 0 && t.Image == "" {
		return errors.New("it has neither a command nor an image")
	}
	filler := NewFiller()
	for _, row := range rows {
		number := len(b.Tasks) + 1
		argv, env, dir, err := t.fillTask(filler, row, number)
		if err != nil {
			return err
		}
		task := Task{Name: name, Request: t.GPUs, Argv: argv, Env: env, Dir: dir, Args: row.Values, Timeout: timeout, Retries: retries}
		if len(row.Values) > 0 {
			task.Name = name + "-" + strings.Join(row.Values, "-")
		}
		b.Tasks = append(b.Tasks, task)
	}
	return nil
}

// isPlainWord reports whether a shell reads the text as one word. It is executed without a shell, which an image may not have.
func isPlainWord(text string) bool {
	return text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./@%+:,-") == ""
}

// fillTask returns the words of one task and its variables, with the placeholders replaced. A command that is one text is read by sh.
func (t FileTask) fillTask(f Filler, row Row, number int) (argv, env []string, dir string, err error) {
	fill := func(text string) string {
		filled, _, e := f.fillText(text, row, number)
		err = errors.Join(err, e)
		return filled
	}
	for _, name := range slices.Sorted(maps.Keys(t.Env)) {
		env = append(env, name+"="+fill(t.Env[name]))
	}
	for _, word := range t.Command.words {
		argv = append(argv, fill(word))
	}
	if t.Command.text && !isPlainWord(argv[0]) {
		argv = []string{"sh", "-c", argv[0]}
	}
	dir = fill(t.Workdir)
	if t.Image == "" {
		return argv, env, dir, err
	}
	run := []string{Self, "run", "--rm"}
	for _, e := range env {
		run = append(run, "--env", e)
	}
	for _, v := range t.Volumes {
		run = append(run, "--volume", fill(v))
	}
	if dir != "" {
		run = append(run, "--workdir", dir)
	}
	return append(append(run, "--", fill(t.Image)), argv...), nil, "", err
}
