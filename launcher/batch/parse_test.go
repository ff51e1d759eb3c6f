package batch

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/testutil"
)

func TestParseFile(t *testing.T) {
	b, err := ParseFile(strings.NewReader(`
name: sweep
jobs: 3
max_fails: 2
defaults: {gpus: 1, timeout: 2h, env: {A: x}}
tasks:
  prepare: {command: python prepare.py | tee log, gpus: ""}
  train:
    image: pytorch/pytorch
    command: [python, train.py, --lr, "{lr}"]
    volumes: ["/data/{seed}:/data"]
    workdir: /data
    env: {A: "y{#}", B: "{lr}"}
    retries: 2
    timeout: "90"
    matrix: {lr: [0.1, 1e-2], seed: [1]}
    after: [prepare]
  evaluate: {command: [evaluate, "{index}"], array: 2, after: train, workdir: "/out/{index}"}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, task := range b.Tasks {
		got = append(got, fmt.Sprintf("%s; %s; %q; %q; %s; %v; %d; %v", b.Label(i+1), task.Request, task.Argv, task.Env, task.Dir, task.Timeout, task.Retries, task.After))
	}
	run := `["berth" "run" "--rm" "--env" "A=y%d" "--env" "B=%s" "--volume" "/data/1:/data" "--workdir" "/data" "--" "pytorch/pytorch" "python" "train.py" "--lr" "%[2]s"]`
	want := []string{
		`1 (prepare); 1; ["sh" "-c" "python prepare.py | tee log"]; ["A=x"]; ; 2h0m0s; 0; []`,
		`2 (train-0.1-1); 1; ` + fmt.Sprintf(run, 2, "0.1") + `; []; ; 1m30s; 2; [1]`,
		`3 (train-1e-2-1); 1; ` + fmt.Sprintf(run, 3, "1e-2") + `; []; ; 1m30s; 2; [1]`,
		`4 (evaluate-0); 1; ["evaluate" "0"]; ["A=x"]; /out/0; 2h0m0s; 0; [2 3]`,
		`5 (evaluate-1); 1; ["evaluate" "1"]; ["A=x"]; /out/1; 2h0m0s; 0; [2 3]`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if b.Name != "sweep" || b.Slots != 3 || b.MaxFails != 2 {
		t.Errorf("%+v", b)
	}
}

// TestCommandTexts: a text is read by sh unless it is a plain word, a list never is, and the braces of a command without values stay.
func TestCommandTexts(t *testing.T) {
	for text, want := range map[string][]string{
		`"/a/b.sh"`:                     {"/a/b.sh"},
		`["/a b"]`:                      {"/a b"},
		`ls *.txt`:                      {"sh", "-c", "ls *.txt"},
		`"~/a"`:                         {"sh", "-c", "~/a"},
		`"find . -exec echo ${A} {} +"`: {"sh", "-c", "find . -exec echo ${A} {} +"},
		`[find, -exec, rm, "{}", ";"]`:  {"find", "-exec", "rm", "{}", ";"},
	} {
		b, err := ParseFile(strings.NewReader("tasks: {a: {command: " + text + "}}"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if diff := cmp.Diff(want, b.Tasks[0].Argv); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

// TestParseFileErrors: each error says where the mistake is.
func TestParseFileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "it has no tasks",
		"tasks: {}":               "it has no tasks",
		"tasks: {a: {comand: x}}": "line 1: field comand not found",
		"tasks:\n  a: {command: [x], timeout: soon}":                                       `task a: timeout: "soon" is not a time`,
		"tasks:\n  a: {gpus: 1}":                                                           "task a: it has neither a command nor an image",
		"tasks:\n  a: {command: x, after: b}":                                              `task a: after: there is no task "b"; there are a`,
		"tasks:\n  a: {command: x, after: b}\n  b: {command: x, after: a}":                 "these tasks wait for each other: 1 (a), 2 (b)",
		"tasks:\n  a: {command: x, after: a}":                                              "these tasks wait for each other: 1 (a)",
		"tasks:\n  a: {command: x, matrix: [1]}":                                           "task a: line 2: a matrix is a list of values for each name",
		"tasks:\n  a: {command: x, matrix: {n: 1}}":                                        "task a: line 2: n: a matrix has a list of values",
		"tasks:\n  a: {command: x, matrix: {n: [[1]]}}":                                    "task a: line 2: n: the values of a matrix are texts and numbers",
		"tasks:\n  a: {command: x, array: -1}":                                             "task a: array: -1",
		"tasks:\n  a: {command: ['{x}'], matrix: {n: [1]}}":                                "task a: {x}: no argument has this name",
		"tasks:\n  a: {command: x, array: 10000000}":                                       "task a: array: 10000000 isn't a number of tasks",
		"tasks:\n  a: {command: x}\n  a: {command: y}":                                     `line 3: mapping key "a" already defined at line 2`,
		"tasks:\n  a: {command: x, matrix: {n: [1, 1]}}":                                   "tasks 1 and 2 have the same name: a-1",
		"tasks:\n  a: {command: x, array: 2000}\n  b: {command: x, array: 2000, after: a}": "task b: after: 2000 of its tasks wait for 2000 of a: put a task between them",
		"tasks:\n\ta: {command: x}":                                                        "line 2",
	} {
		if _, err := ParseFile(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %v, want %s", text, err, want)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add("tasks: {a: {command: x, matrix: {n: [1, 2]}, after: b}, b: {command: [y, '{#}'], array: 3}}")
	f.Fuzz(func(t *testing.T, text string) {
		if b, err := ParseFile(strings.NewReader(text)); err == nil && len(b.Tasks) == 0 {
			t.Error("a batch without tasks")
		}
	})
}

// TestSchema: the published schema has the fields of batch files, and no others.
func TestSchema(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/batch.schema.json")
	testutil.Must(t, err)
	type object struct{ Properties map[string]any }
	var schema struct {
		object
		Defs struct{ Task object } `json:"$defs"`
	}
	testutil.Must(t, json.Unmarshal(text, &schema))
	for _, pair := range []struct {
		fields reflect.Type
		have   map[string]any
	}{{reflect.TypeFor[File](), schema.Properties}, {reflect.TypeFor[FileTask](), schema.Defs.Task.Properties}} {
		var want []string
		for i := range pair.fields.NumField() {
			if name := pair.fields.Field(i).Tag.Get("yaml"); name != "" {
				want = append(want, name)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(pair.have))); diff != "" {
			t.Errorf("%s: %s", pair.fields.Name(), diff)
		}
	}
}
