package apptainer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/mounttree"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/enter"
	store "github.com/berth-gpu/berth/launcher/image"
)

// listSchemes returns the beginnings of references to images that are unpacked into berth's store.
func listSchemes() []string { return []string{"docker://", "oci:", "oci-archive:", "docker-archive:"} }

// isReference reports whether a word is such a reference, and no file or directory.
func isReference(word string) bool {
	return slices.ContainsFunc(listSchemes(), func(s string) bool { return strings.HasPrefix(word, s) })
}

// checkReference returns an error for Apptainer's words for images that berth doesn't support.
func checkReference(word string) error {
	scheme, rest, _ := strings.Cut(word, ":")
	hasSlashes := strings.HasPrefix(rest, "//")
	reason := ""
	switch {
	case word == "docker://", word == "docker:":
		reason = "the name of the image is missing, as in docker://debian:13"
	case word == "oci:":
		reason = "the directory of the image is missing, as in oci:DIR or oci:DIR:TAG"
	case slices.Contains(listSchemes(), word):
		reason = "the file of the image is missing, as in " + word + "FILE"
	case slices.Contains(sifSchemes(), word):
		reason = "the name of the image is missing"
	case isReference(word), isRemoteSIF(word):
		return nil
	case scheme == "docker-daemon":
		reason = "docker's own images aren't read: docker save -o FILE writes one, and docker-archive:FILE names it"
	case scheme == "docker" && rest != "":
		reason = "an image of a registry is docker://" + rest
	case !hasSlashes:
		return nil
	case scheme == "shub":
		reason = "Singularity Hub has ended; images of registries are docker://NAME, and SIF files of registries oras://NAME"
	case scheme == "http", scheme == "https":
		reason = "images aren't downloaded from web servers here: curl -O fetches a file, which is then an image"
	case scheme == "instance":
		reason = "exec, run and shell take an instance, and nothing else does"
	default:
		reason = "images are files, directories, docker://NAME, oras://NAME, library://PATH, oci:DIR, oci-archive:FILE and docker-archive:FILE"
	}
	return fmt.Errorf("image %q: %s", word, reason)
}

// suggestScheme returns a hint for a directory or a file that is an image of another kind than SIF, "" for others.
func suggestScheme(name string, isDir bool) string {
	if isDir {
		if st, err := os.Stat(filepath.Join(name, "oci-layout")); err == nil && st.Mode().IsRegular() {
			return "it is an OCI layout: oci:" + name
		}
		return ""
	}
	for _, ending := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2"} {
		if strings.HasSuffix(name, ending) {
			return "docker-archive:" + name + " is an archive of docker save, and oci-archive:" + name + " one of an OCI layout"
		}
	}
	return ""
}

// content is an image of berth's store, as the process inside gets it.
type content struct {
	// Name is the full name of an image of a registry, and the reference for all others.
	Name   string       `json:"name"`
	Layers []string     `json:"layers"` // directories, topmost first
	Config store.Config `json:"config"`
	// IsSIF means that it is a SIF file or a directory, which has no configuration.
	IsSIF bool `json:"isSIF,omitempty"`
	// Tree is the number of a file descriptor of a mount, which takes the place of the layers; 0 for none. Writable means that overlays in files are
	// written to in it.
	Tree     int  `json:"tree,omitempty"`
	Writable bool `json:"writable,omitempty"`
	// Dir is a directory, which takes the place of the layers. It is "" unless there are Overlays.
	Dir string `json:"dir,omitempty"`
	// Overlays are those of root's container, topmost first.
	Overlays []passedOverlay `json:"overlays,omitempty"`
}

// passedOverlay is an overlay of root's container, as the process inside gets it: the path of a directory of --overlay, or the number of a file descriptor of a
// mount.
type passedOverlay struct {
	Dir      string `json:"dir,omitempty"`
	Tree     int    `json:"tree,omitempty"`
	IsExt3   bool   `json:"isExt3,omitempty"`
	Writable bool   `json:"writable,omitempty"`
}

// unpackReference unpacks the missing layers of an image, which it pulls if that is needed. The layers aren't pruned as long as a process has the
// file open.
func unpackReference(c *cli.Context, conf berth.Config, ref string, when store.Pull) (got content, use *os.File, err error) {
	if os.Geteuid() != 0 {
		err = rootless.MakeDataDir(conf)
	} else {
		err = verb.NeedHost()
	}
	if err != nil {
		return got, nil, err
	}
	at := store.SingleOwnerStore(conf.TaskData())
	use, err = at.NewUse()
	if err != nil {
		return got, nil, err
	}
	switch {
	case os.Geteuid() == 0:
		got, err = unpackInto(c, conf, at, ref, when, use.Name())
	case when != store.Always && findUnpacked(c, at, ref, use.Name(), &got):
	default:
		got, err = unpackInNamespace(c, conf, at, ref, when, use.Name())
	}
	if verb.IsDiskFull(err) {
		err = verb.DiskFull{Err: err}
	}
	if err != nil {
		return got, nil, errors.Join(err, os.Remove(use.Name()), use.Close())
	}
	return got, use, nil
}

// unpackInto is unpackReference in a process that may unpack layers. use is the path of the file.
func unpackInto(c *cli.Context, conf berth.Config, at store.Store, ref string, when store.Pull, use string) (got content, err error) {
	progress := backend.PrintUnpacking(time.Now())
	var img *store.Image
	passed, isSIF := strings.CutPrefix(ref, sifScheme)
	if isSIF {
		var closeFile func()
		if img, closeFile, err = openSIF(c, at, passed); err == nil {
			defer closeFile()
		}
	} else {
		img, err = at.OpenFetched(c.Context, ref, store.Search{Pull: when}, backend.NewImageFetcher(c, conf, at, progress))
	}
	if err != nil {
		return got, err
	}
	defer img.Close()
	layers, err := at.Unpack(c.Context, img, progress)
	if err != nil {
		return got, err
	}
	return content{Name: img.Name, Layers: layers, Config: img.Config, IsSIF: isSIF}, img.RecordUse(use, layers)
}

// findUnpacked sets got for an image with all layers unpacked, and reports whether it is one: then no process is needed that may unpack them. Archives aren't
// looked into, because compressed ones have to be decompressed.
func findUnpacked(c *cli.Context, at store.Store, ref, use string, got *content) bool {
	passed, isSIF := strings.CutPrefix(ref, sifScheme)
	var img *store.Image
	switch {
	case isSIF:
		i, err := openPassed(passed)
		if err != nil {
			return false
		}
		defer i.closeFile()
		if !at.HasSquashfs(i.file, i.offset) {
			return false
		}
		img, err = at.OpenSquashfs(c.Context, i.file, i.offset, i.sif.Root.Size, i.file.Name(), nil)
		if err != nil {
			return false
		}
	case strings.HasPrefix(ref, "docker://"), strings.HasPrefix(ref, "oci:"):
		var err error
		if img, err = at.Open(c.Context, ref, store.Search{Pull: store.Never}); err != nil {
			return false
		}
	default:
		return false
	}
	defer img.Close()
	layers, err := at.FindUnpacked(c.Context, img)
	if err != nil || layers == nil || img.RecordUse(use, layers) != nil {
		return false
	}
	*got = content{Name: img.Name, Layers: layers, Config: img.Config, IsSIF: isSIF}
	return true
}

// unpackVerb is the hidden verb of [UnpackCommand].
const unpackVerb = "unpack-image"

// unpackAnswer is what the hidden verb prints.
type unpackAnswer struct {
	Content content         `json:"content"`
	Error   *engine.Failure `json:"error,omitempty"`
}

// unpackInNamespace is unpackInto in a child that is root of a user namespace without other ids, so that all files belong to this user.
func unpackInNamespace(c *cli.Context, conf berth.Config, at store.Store, ref string, when store.Pull, use string) (got content, err error) {
	const patience = 10 * time.Second // for the end of a pull that is interrupted
	cmd := exec.CommandContext(c.Context, "/proc/self/exe", "--config", c.String("config"), unpackVerb, at.Dir, use, ref, string(when))
	cmd.Args[0] = "berth"
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(unix.SIGTERM) }, patience
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	userns.Enter(cmd)
	out, err := cmd.Output()
	var answer unpackAnswer
	switch {
	case c.Err() != nil:
		return got, context.Cause(c.Context)
	case len(out) == 0 && err != nil:
		return got, cmp.Or(rootless.ExplainRefusal(conf, err), fmt.Errorf("unpack %s: %w", ref, err))
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return got, fmt.Errorf("unpack %s: %w", ref, err)
	}
	if answer.Error != nil {
		return got, answer.Error
	}
	return answer.Content, nil
}

// UnpackCommand is the hidden verb of a process that unpacks an image for its user, as root of a user namespace.
func UnpackCommand() *cli.Command {
	return &cli.Command{
		Name: unpackVerb, Hidden: true, HideHelp: true,
		Action: func(c *cli.Context) error {
			const words = 4
			if c.NArg() != words {
				return verb.UsageError{Err: errors.New("only berth apptainer starts berth " + unpackVerb)}
			}
			conf, err := verb.LoadConfig(c)
			if err != nil {
				return err
			}
			w := c.Args().Slice()
			got, err := unpackInto(c, conf, store.Store{Dir: w[0]}, w[2], store.Pull(w[3]), w[1])
			answer := unpackAnswer{Content: got}
			if err != nil {
				failure := engine.NewFailure(err)
				answer = unpackAnswer{Error: &failure}
			}
			return json.NewEncoder(os.Stdout).Encode(answer)
		},
	}
}

// layersPrefix begins the value of imageVariable for an image of the store, or one with overlays in files. The numbers of two file descriptors follow: of a memfd with the content,
// and of the file that keeps the layers, which the command inherits.
const layersPrefix = "layers:"

// passContent returns the value of imageVariable for an image of the store, or one with overlays in files. use is nil for an image that isn't the store's.
func passContent(got content, use *os.File) (string, error) {
	data, err := json.Marshal(got)
	if err != nil {
		return "", err
	}
	fd, err := unix.MemfdCreate("berth-image", unix.MFD_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("pass on an image: %w", err)
	}
	f := os.NewFile(uintptr(fd), "image")
	defer f.Close() // a copy is passed on
	if _, err := f.Write(data); err != nil {
		return "", err
	}
	described, err := rootless.Inherit(f)
	if err != nil {
		return "", err
	}
	held := described
	if use != nil {
		defer use.Close() // a copy is passed on
		held, err = rootless.Inherit(use)
	}
	return fmt.Sprintf("%s%d:%d", layersPrefix, described, held), err
}

// openLayers sets the layers of the container, if the value of imageVariable is of that kind.
func (p *plan) openLayers(passed string, o *enter.Options) error {
	var described, held int
	if _, err := fmt.Sscanf(passed, layersPrefix+"%d:%d", &described, &held); err != nil {
		return fmt.Errorf("environment variable %s: %w", imageVariable, err)
	}
	if held != described {
		if err := restrictToReading(held); err != nil {
			return fmt.Errorf("keep the image's layers: %w", err)
		}
	}
	f := os.NewFile(uintptr(described), "image")
	defer f.Close() // only read
	_, err := f.Seek(0, io.SeekStart)
	var got content
	if err == nil {
		err = json.NewDecoder(f).Decode(&got)
	}
	if err != nil {
		return fmt.Errorf("read the image: %w", err)
	}
	switch {
	case got.Tree != 0:
		o.Image = receiveTree(got.Tree)
	case got.Dir != "":
		o.Dir = got.Dir
	default:
		o.Layers = store.OmitHidden(got.Layers)
	}
	if got.Tree != 0 || len(got.Overlays) > 0 { // --writable is about an overlay
		o.InPlace = got.Writable
		p.writes.allowed = p.writes.allowed || got.Writable
	}
	if !got.IsSIF {
		p.content = &got
	}
	return p.openOverlays(got.Overlays, o)
}

// openOverlays sets the overlays of root's container.
func (p *plan) openOverlays(overlays []passedOverlay, o *enter.Options) (err error) {
	if len(overlays) > 0 { // those of directories are among them
		o.Above = nil
	}
	for _, passed := range overlays {
		l := enter.Overlay{HasUpper: passed.IsExt3}
		if passed.Dir != "" {
			l.Dir, err = p.writes.openAboveDir(passed.Dir)
		} else {
			l.Tree = receiveTree(passed.Tree)
		}
		switch {
		case err != nil:
			return err
		case passed.Writable:
			o.WritesTree, p.writes.allowed = l.Tree, true
		default:
			o.Above = append(o.Above, l)
		}
	}
	return nil
}

// restrictToReading replaces the descriptor of a file that this process has locked, by one of a mount that can't be written to: a descriptor for reading
// alone can be opened again through /proc.
func restrictToReading(fd int) error {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return err
	}
	b, err := mounttree.CloneBind(specs.Mount{Type: "bind", Source: path, Options: []string{"ro"}})
	if err != nil {
		return err
	}
	defer b.Tree.Close() // the file keeps the mount
	f, err := inroot.Reopen(b.Tree)
	if err != nil {
		return err
	}
	defer f.Close() // a copy stays
	if !lock.IsAt(fd, path) {
		return &fs.PathError{Op: "open", Path: path, Err: errors.New("it is another file by now")}
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return unix.Dup3(int(f.Fd()), fd, 0)
}

// receiveTree returns the mount of a file descriptor that this process has inherited.
func receiveTree(fd int) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "image") //nolint:gosec // not negative
}

// chooseWords returns the words that the verb run executes: the entry point, and the arguments or else the default ones. first is the index of the first argument.
func (i content) chooseWords(args []string) (words []string, first int) {
	first = len(i.Config.Entrypoint)
	if len(args) == 0 {
		words = append(words, i.Config.Entrypoint...)
		words = append(words, i.Config.Cmd...)
		return words, len(words)
	}
	return append(append(words, i.Config.Entrypoint...), args...), first
}

// setEnvironment writes the assignments of the image's variables. PATH and LD_LIBRARY_PATH are always assigned, and other variables only if they are unset
// or empty. Source: observed with Apptainer 1.4.5.
func (i content) setEnvironment(line func(format string, args ...any)) {
	for _, kv := range i.Config.Env {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case !verb.IsVariableName(name):
		case name == "PATH":
			line(`export PATH=%s`, quoteWord(value))
		case name == "LD_LIBRARY_PATH":
			line(`export LD_LIBRARY_PATH=%s`, quoteWord(value+":/.singularity.d/libs"))
		default:
			line(`if [ -z "${%[1]s:-}" ]; then %[1]s=%s; fi; export %[1]s`, name, quoteWord(value))
		}
	}
}

// listDriverVariables returns the image's variables by which it chooses among the driver's files.
func (p *plan) listDriverVariables() (all []string) {
	if p.content == nil {
		return nil
	}
	for _, kv := range p.content.Config.Env {
		if strings.HasPrefix(kv, "NVIDIA_DRIVER_CAPABILITIES=") {
			all = append(all, kv)
		}
	}
	return all
}

// runCommand writes the lines that execute the command of the verb run.
func (p *plan) runCommand(line func(format string, args ...any)) {
	words, first := p.content.chooseWords(p.words)
	if len(words) == 0 {
		line(`echo 'berth: the image has neither an entry point nor a command; executing /bin/sh' >&2`)
		words = []string{"/bin/sh"}
	}
	var b bytes.Buffer
	for i, w := range words {
		quote := quoteWord
		if i >= first && p.variables.eval {
			quote = quoteArgument
		}
		b.WriteString(" " + quote(w))
	}
	line(`set --%s`, b.String())
	execWords(line, codeNotFound)
}

// quoteArgument returns an argument of the verb run as a word in which a shell expands variables and commands, unless a backslash precedes them.
// Quotation marks stay.
func quoteArgument(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			b.WriteString(`\"`)
		case c == '\\' && i+1 < len(text) && strings.IndexByte("$`\\", text[i+1]) >= 0:
			b.WriteString(text[i : i+2])
			i++
		case c == '\\':
			b.WriteString(`\\`)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// mergeVariables joins lists of environment variables. Of several with one name the last counts.
func mergeVariables(lists ...[]string) (all []string) {
	at := map[string]int{}
	for _, list := range lists {
		for _, kv := range list {
			name, _, _ := strings.Cut(kv, "=")
			if i, found := at[name]; found {
				all[i] = kv
				continue
			}
			at[name] = len(all)
			all = append(all, kv)
		}
	}
	return all
}

// findVariable returns the value of a variable in a list.
func findVariable(list []string, name string) (value string) {
	for _, kv := range list {
		if v, found := strings.CutPrefix(kv, name+"="); found {
			value = v
		}
	}
	return value
}
