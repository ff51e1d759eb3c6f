package escape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/hook/inject"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// racerWord is the first argument that makes this program do inside a node, in many rounds, what
// wrapper and hook do to an image.
const racerWord = "racer"

type racer struct {
	entryPoint, outside, secret string
	root                        string
	rounds                      int

	node  *berth.Node
	lease ledger.Lease
	spec  []byte
	held  *held // a container that is being created, for the hook
}

func racerMain(args []string) int {
	if err := racing(context.Background(), args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func racing(ctx context.Context, args []string) (err error) {
	r := &racer{entryPoint: args[0], outside: args[3], secret: args[4], root: filepath.Join(args[2], "rootfs")}
	if r.rounds, err = strconv.Atoi(args[5]); err != nil {
		return err
	}
	if r.spec, err = os.ReadFile(filepath.Join(args[2], "config.json")); err != nil {
		return err
	}
	conf, err := berth.LoadConfig(args[1])
	if err != nil {
		return err
	}
	if r.node, err = berth.Open(conf); err != nil {
		return err
	}
	one, err := request.Parse("1")
	if err != nil {
		return err
	}
	owner := ledger.Owner{EntryPoint: "api", Container: filepath.Base(args[2]), Process: ledger.Process{PID: os.Getpid()}}
	if r.lease, err = r.node.Acquire(ctx, ledger.Ask{Owner: owner, Request: one}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.held.end(r.outside), r.node.Release(ctx, r.lease.ID)) }()
	for i := range r.rounds {
		if err := r.round(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// round does to an image what a start does. An error is fine: the place may be a link that leads
// nowhere.
func (r *racer) round(ctx context.Context, i int) error {
	spec := &specs.Spec{}
	if err := json.Unmarshal(r.spec, spec); err != nil {
		return err
	}
	root, err := berth.OpenRoot(r.root)
	if err != nil {
		return err
	}
	defer root.Close()
	e, _, err := r.node.Compose(ctx, spec, &r.lease, root)
	if err == nil {
		if source := fromInside(e.Mounts, r.root); source != "" {
			return fmt.Errorf("%s would be mounted", source)
		}
		if r.entryPoint == "hook" {
			if err := r.inject(ctx, i, spec, e); err != nil {
				return err
			}
		}
	}
	cache, err := inroot.ReadFile(root, "/etc/ld.so.cache", 1<<20)
	if err == nil && bytes.Contains(cache, []byte(r.secret)) {
		return errors.New("the loader's cache has what a file of the host says")
	}
	return nil
}

// inject does what the hook does, to a container that is never started.
func (r *racer) inject(ctx context.Context, i int, spec *specs.Spec, e edits.Edits) (err error) {
	if i%25 == 0 || r.held == nil { // mounts are stacked
		if err := r.held.end(r.outside); err != nil {
			return err
		}
		if r.held, err = hold(r.root, r.outside, spec); err != nil {
			return fmt.Errorf("hold a container: %w", err)
		}
	}
	// It may return an error.
	_ = inject.Apply(ctx, inject.Container{
		PID: r.held.cmd.Process.Pid, Root: r.root, Spec: spec,
		SetRules: func([]edits.Rule) error { return nil },
	}, e)
	return nil
}

// held is a container's process in the state in which a hook finds it: its root is mounted, and it
// waits.
type held struct {
	cmd    *exec.Cmd
	stop   func() error
	strays string // mounts that the runtime's part has made through the link
}

func hold(root, outside string, spec *specs.Spec) (*held, error) {
	script := "mount --bind " + root + " " + root
	for _, m := range spec.Mounts {
		if m.Type == "tmpfs" || m.Type == "proc" {
			script += fmt.Sprintf("; mount -t %s %s %s%s 2>/dev/null || true", m.Type, m.Type, root, m.Destination)
		}
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script+"; echo; exec cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		return nil, err
	}
	h := &held{cmd: cmd, stop: in.Close}
	h.strays, err = strayMounts(cmd.Process.Pid, outside)
	return h, err
}

// strayMounts returns a process's mounts on the endangered files.
func strayMounts(pid int, outside string) (stray string, err error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], outside) {
			stray += f[4] + " "
		}
	}
	return stray, nil
}

// fromInside reports whether a mount's source lies in the image.
func fromInside(mounts []specs.Mount, root string) string {
	for _, m := range mounts {
		if strings.HasPrefix(m.Source, root) {
			return m.Source
		}
	}
	return ""
}

// end reports a mount at a forbidden place: it would still exist.
func (h *held) end(outside string) error {
	if h == nil {
		return nil
	}
	strays, err := strayMounts(h.cmd.Process.Pid, outside)
	if err == nil && strays != h.strays {
		err = fmt.Errorf("something was mounted on the host's files: %s", strays)
	}
	return errors.Join(err, h.stop(), h.cmd.Wait())
}
