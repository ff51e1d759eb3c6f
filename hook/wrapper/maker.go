package wrapper

import (
	"crypto/sha256"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	processes "github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// makerAnnotation is in every bundle that the wrapper has rewritten. It identifies the
// container, and the process that creates it.
const makerAnnotation = "dev.berth.maker"

// writeSpec rewrites the bundle, with the maker annotation in it.
func (n *creation) writeSpec(spec *specs.Spec) (err error) {
	me := n.process
	if me.PID == 0 {
		if me, err = readOwnProcess(); err != nil {
			return err
		}
	}
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	key := containerKey(n.rt.Name, absolutePath(n.rt.stateDir(n.call)), n.id)
	spec.Annotations[makerAnnotation] = fmt.Sprintf("%s %d %d pid:[%d]", key, me.PID, me.Start, me.Namespace)
	return n.bundle.Write(spec)
}

func readOwnProcess() (me ledger.Process, err error) {
	me.PID = os.Getpid()
	if me.Start, err = processes.Start("/proc", me.PID); err != nil {
		return me, fmt.Errorf("read this process's start time: %w", err)
	}
	if me.Namespace, err = processes.Namespace("/proc", me.PID); err != nil {
		return me, fmt.Errorf("read this process's pid namespace: %w", err)
	}
	return me, nil
}

// containerKey identifies a container. Ids are unique only within a runtime's state
// directory.
func containerKey(runtime, root, id string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(runtime+"\x00"+root+"\x00"+id)))
}

// maker is a decoded maker annotation.
type maker struct {
	container, namespace string
	pid                  int
	start                uint64
}

func parseMaker(annotations map[string]string) (m maker, ok bool) {
	_, err := fmt.Sscanf(annotations[makerAnnotation], "%s %d %d %s", &m.container, &m.pid, &m.start, &m.namespace)
	return m, err == nil
}

// mayBeRunning reports whether the creating process may still run. It stays the same
// process when it execs the real runtime, which has written its state before it ends. A
// process of another pid namespace is invisible, and counts as running.
func (m maker) mayBeRunning() bool {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	return err != nil || namespace != m.namespace || processes.Lives("/proc", m.pid, m.start)
}

// ownsRewrite reports whether the bundle was rewritten for this container. The path of the bundle
// can come from an annotation of an untrusted image, so it may be another container's bundle. A
// bundle without a maker annotation counts as the container's.
func (r *deletion) ownsRewrite(annotations map[string]string) bool {
	m, ok := parseMaker(annotations)
	return !ok || m.container == containerKey(r.rt.Name, r.root, r.id)
}

// belongsToAnother reports whether the locked bundle is, or may be, another container's.
// The order of the checks matters: a process that creates the next container of this id
// either still runs, or has written a state that its runtime finds. If in doubt the
// bundle stays rewritten; its next create restores it.
func (r *deletion) belongsToAnother() bool {
	annotations, err := r.bundle.RewrittenAnnotations()
	if err != nil || annotations == nil {
		return err != nil
	}
	m, ok := parseMaker(annotations)
	return !ok || !r.ownsRewrite(annotations) || m.mayBeRunning() || r.rt.hasContainer(r.root, r.id)
}
