package wrapper

import (
	"crypto/sha256"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"

	processes "github.com/berth-gpu/berth/internal/process"
)

// makerAnnotation names, in every bundle that the wrapper has rewritten, the process that
// makes the container of it, and that container.
const makerAnnotation = "dev.berth.maker"

// writeSpec rewrites the bundle, and notes in it for whom.
func (n *creation) writeSpec(spec *specs.Spec) error {
	start, err := processes.Start("/proc", os.Getpid())
	if err != nil {
		return fmt.Errorf("tell when this process started: %w", err)
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return fmt.Errorf("tell this process's pid namespace: %w", err)
	}
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	life := containerKey(n.rt.Name, absolutePath(n.rt.stateDir(n.call)), n.id)
	spec.Annotations[makerAnnotation] = fmt.Sprintf("%s %d %d %s", life, os.Getpid(), start, space)
	return n.bundle.Write(spec)
}

// containerKey is a word for a container: ids are only unique within a runtime's state directory.
func containerKey(runtime, root, id string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(runtime+"\x00"+root+"\x00"+id)))
}

// maker is what a rewritten bundle says of its own making.
type maker struct {
	container, namespace string
	pid                  int
	start                uint64
}

func parseMaker(notes map[string]string) (m maker, ok bool) {
	_, err := fmt.Sscanf(notes[makerAnnotation], "%s %d %d %s", &m.container, &m.pid, &m.start, &m.namespace)
	return m, err == nil
}

// mayBeRunning says that the maker may still be at it. It stays the same process when it becomes
// the real runtime, which has read the bundle and written its state by the time it ends.
// One of another pid namespace can't be seen.
func (m maker) mayBeRunning() bool {
	space, err := os.Readlink("/proc/self/ns/pid")
	return err != nil || space != m.namespace || processes.Lives("/proc", m.pid, m.start)
}

// ownsRewrite says that the bundle was rewritten for this container, as far as is noted: what
// named the bundle can be a stranger's word.
func (r *deletion) ownsRewrite(notes map[string]string) bool {
	m, ok := parseMaker(notes)
	return !ok || m.container == containerKey(r.rt.Name, r.root, r.id)
}

// belongsToAnother says of the locked bundle that it isn't, or may not be, the deleted container's any
// more. Whoever makes another one of the same name either works, or has left it for its
// runtime to know, hence the order. A bundle that stays rewritten is the next create's to
// put right.
func (r *deletion) belongsToAnother() bool {
	notes, err := r.bundle.RewrittenAnnotations()
	if err != nil || notes == nil {
		return err != nil
	}
	m, ok := parseMaker(notes)
	return !ok || !r.ownsRewrite(notes) || m.mayBeRunning() || r.rt.hasContainer(r.root, r.id)
}
