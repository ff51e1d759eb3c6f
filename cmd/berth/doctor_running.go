package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/hook/setup"
)

// running asks an engine's daemon.
func running(ctx context.Context, engine string) (r setup.Running) {
	switch engine {
	case "docker":
		info, ok := dockerInfo(ctx)
		if !ok {
			return r
		}
		r = setup.Running{Answers: true, Default: info.DefaultRuntime, Runtimes: map[string]string{}, CDI: info.CDISpecDirs, Path: dockerPath()}
		for name, runtime := range info.Runtimes {
			r.Runtimes[name] = runtime.Path
		}
	case "containerd":
		r.Started = startOf(ctx, "containerd.service")
	case "podman":
		r.Default = answer(ctx, "podman", "info", "--format", "{{.Host.OCIRuntime.Name}}")
		r.Answers = r.Default != ""
	}
	return r
}

// dockerSays is what is needed of what dockerd says of itself.
type dockerSays struct {
	Runtimes       map[string]struct{ Path string }
	DefaultRuntime string
	CDISpecDirs    []string
}

// dockerInfo asks dockerd by its socket, and where it has another, by its command.
func dockerInfo(ctx context.Context) (info dockerSays, ok bool) {
	text, err := askSocket(ctx, dockerSocket, "/info")
	if err != nil {
		text = []byte(answer(ctx, "docker", "info", "--format", "{{json .}}"))
	}
	return info, json.Unmarshal(text, &info) == nil && info.DefaultRuntime != ""
}

const (
	// dockerSocket is where dockerd listens unless it is told otherwise.
	dockerSocket = "/var/run/docker.sock"
	// dockerLimit is far more than it says of itself.
	dockerLimit = 16 << 20
	// dockerPatience is how long it may take.
	dockerPatience = 5 * time.Second
)

// askSocket gets what a daemon says by HTTP on a socket of the machine's.
func askSocket(ctx context.Context, socket, path string) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, dockerPatience)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", socket, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask %s: %s", socket, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, dockerLimit))
}

// startOf is when systemd has started a service that runs, zero if it doesn't say.
func startOf(ctx context.Context, unit string) time.Time {
	said := answer(ctx, "systemctl", "show", "--timestamp=unix", "--property=ExecMainStartTimestamp", "--value", unit)
	seconds, err := strconv.ParseInt(strings.TrimPrefix(said, "@"), 10, 64)
	if err != nil || seconds <= 0 || answer(ctx, "systemctl", "is-active", unit) != "active" {
		return time.Time{}
	}
	return time.Unix(seconds+1, 0) // the seconds are whole ones
}

// dockerPath is the PATH of the dockerd that runs, "" if it isn't known.
func dockerPath() string {
	pid, err := os.ReadFile("/var/run/docker.pid")
	if err != nil {
		return ""
	}
	env, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/environ")
	if err != nil {
		return ""
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if path, ok := bytes.CutPrefix(entry, []byte("PATH=")); ok {
			return string(path)
		}
	}
	return ""
}
