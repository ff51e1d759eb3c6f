package engines

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
)

// Daemon is the state that an engine's running daemon reports.
type Daemon struct {
	// Answers means that the daemon has answered.
	Answers bool
	// Runtimes are the paths of its runtimes by name, Default the name of the default one.
	Runtimes map[string]string
	Default  string
	// CDI are the directories in which it looks for CDI devices. An empty list means that
	// CDI is off, or that the daemon doesn't report it.
	CDI []string
	// Path is the PATH of its process, "" if it isn't known.
	Path string
	// Started is when it has read its configuration, zero if unknown.
	Started time.Time
}

// QueryDaemon queries an engine's daemon. podman has no daemon, so its command is queried.
func QueryDaemon(ctx context.Context, engine string) (d Daemon) {
	switch engine {
	case "docker":
		info, ok := queryDocker(ctx)
		if !ok {
			return d
		}
		d = Daemon{Answers: true, Default: info.DefaultRuntime, Runtimes: map[string]string{}, CDI: info.CDISpecDirs, Path: dockerdPath()}
		for name, runtime := range info.Runtimes {
			d.Runtimes[name] = runtime.Path
		}
	case "containerd":
		d.Started = queryStartTime(ctx, "containerd.service")
	case "podman":
		d.Default = tryRun(ctx, "podman", "info", "--format", "{{.Host.OCIRuntime.Name}}")
		d.Answers = d.Default != ""
	}
	return d
}

// dockerInfo is a part of dockerd's answer to GET /info.
type dockerInfo struct {
	Runtimes       map[string]struct{ Path string }
	DefaultRuntime string
	CDISpecDirs    []string
}

const (
	// dockerSocket is where dockerd listens by default.
	dockerSocket = "/var/run/docker.sock"
	// maxAnswer bounds what is read of a daemon's answer.
	maxAnswer = 16 << 20
	// socketTimeout is how long a daemon may take to answer on its socket.
	socketTimeout = 5 * time.Second
)

// queryDocker queries dockerd on its default socket, or by the docker command if dockerd
// doesn't listen there.
func queryDocker(ctx context.Context) (info dockerInfo, ok bool) {
	text, err := getFromSocket(ctx, dockerSocket, "/info")
	if err != nil {
		text = []byte(tryRun(ctx, "docker", "info", "--format", "{{json .}}"))
	}
	return info, json.Unmarshal(text, &info) == nil && info.DefaultRuntime != ""
}

// getFromSocket makes a GET request on a Unix socket.
func getFromSocket(ctx context.Context, socket, path string) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, socketTimeout)
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
		return nil, fmt.Errorf("query %s: %w", socket, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("query %s: %s", socket, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxAnswer))
}

// queryStartTime returns the time at which systemd has started a running service, zero if it
// is unknown. systemd reports whole seconds: the end of that second is returned.
func queryStartTime(ctx context.Context, unit string) time.Time {
	answer := tryRun(ctx, "systemctl", "show", "--timestamp=unix", "--property=ExecMainStartTimestamp", "--value", unit)
	seconds, err := strconv.ParseInt(strings.TrimPrefix(answer, "@"), 10, 64)
	if err != nil || seconds <= 0 || tryRun(ctx, "systemctl", "is-active", unit) != "active" {
		return time.Time{}
	}
	return time.Unix(seconds+1, 0)
}

// dockerdPath returns the PATH of the running dockerd, "" if it is unknown.
func dockerdPath() string {
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
