package engine

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func TestRequestArrivesWhole(t *testing.T) {
	adj := -5
	want := Request{
		Verb: "run", Address: "/run/x.sock", Config: "/etc/c", Access: registry.Access{Credentials: []registry.CredentialFile{{Path: "a"}, {Path: "b", User: &registry.User{UID: 1, GID: 2, Home: "/h"}}}, HostDirs: []string{"b"}, Agent: "c"},
		Run: &Run{
			Options: launcher.Options{
				Image: "debian", Search: image.Search{Pull: image.Always},
				Lifecycle: launcher.Lifecycle{Labels: map[string]string{"a": "b"}, Restart: tasks.Restart{Policy: "on-failure", Max: 2}, LogLimit: tasks.LogLimit{Size: 5}},
				Settings: spec.Settings{
					Command: []string{"sh"}, Entrypoint: []string{},
					Security: spec.Security{CapAdd: []string{"ALL"}}, Resources: spec.Resources{OOMScoreAdj: &adj},
				},
			},
			Devices: "2", Detach: true,
		},
		Grace: time.Minute,
	}
	f, err := want.Write()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(request.Request, request.Request) bool { return true })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFailureRoundTrip(t *testing.T) {
	var b bytes.Buffer
	was := fmt.Errorf("task %q: %w", "x", tasks.ErrNotFound)
	if err := Reply(&b, nil, was); err != nil {
		t.Fatal(err)
	}
	_, err := Receive(&b, nil)
	if err == nil || err.Error() != was.Error() {
		t.Fatalf("got %v, want %v", err, was)
	}
	for name, kind := range failureKinds() {
		if got, want := errors.Is(err, kind), errors.Is(was, kind); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// What was joined arrives as what it was, one by one, with what was done all the same.
func TestPartsArrive(t *testing.T) {
	var b bytes.Buffer
	one, two := fmt.Errorf("image %q %w", "a", image.ErrNotHere), fmt.Errorf("%w: %w", errors.New("image b"), image.ErrUsed)
	if err := Reply(&b, []string{"done"}, errors.Join(one, nil, two)); err != nil {
		t.Fatal(err)
	}
	value, err := Receive(&b, nil)
	if string(value) != `["done"]` {
		t.Errorf("value %s", value)
	}
	parts := Parts(err)
	if len(parts) != 2 || parts[0].Error() != one.Error() || parts[1].Error() != two.Error() {
		t.Fatalf("got %v", parts)
	}
	if !errors.Is(parts[0], image.ErrNotHere) || errors.Is(parts[0], image.ErrUsed) || !errors.Is(parts[1], image.ErrUsed) {
		t.Errorf("got %+v", parts)
	}
	if got := Parts(nil); got != nil {
		t.Errorf("of none: %v", got)
	}
}
