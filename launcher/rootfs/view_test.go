package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// What is mounted into a root is looked at as the root is: in the place where it
// will be, by way of the links that lead there.
func TestFindCommandInMounts(t *testing.T) {
	root := makeTree(t, map[string]string{
		"bin/sh": "", "lib64": "->usr/lib64", "usr/lib64/other": "", "bin/outside": "->/store/tool", "bin/hidden": "",
		"usr/bin/lost": "#!/lib64/loader\n",
	})
	host := makeTree(t, map[string]string{
		"tools/good": "#!/bin/sh\n", "tools/bad": "#!/lib64/loader\n", "tools/own": "#!/tools/sh\n", "tools/sh": "",
		"tools/up": "->../../bin/sh", "tools/away": "->/etc/passwd", "loader": "", "empty/x": "",
	}).Name()
	fifo, plain := filepath.Join(host, "fifo"), filepath.Join(host, "plain")
	if err := errors.Join(unix.Mkfifo(fifo, 0o755), os.WriteFile(plain, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	at := func(pairs ...string) (m []Mount) {
		for i := 0; i < len(pairs); i += 2 {
			m = append(m, Mount{At: pairs[i], Source: filepath.Join(host, pairs[i+1])})
		}
		return m
	}
	for _, tt := range []struct {
		name, command string
		mounts        []Mount
		programs      map[string]string
		want          error
		says          string
	}{
		{name: "volume", command: "/tools/good", mounts: at("/tools", "tools")},
		{name: "below what isn't there", command: "/new/place/good", mounts: at("/new/place", "tools")},
		{name: "above", command: "/new", mounts: at("/new/place", "tools"), want: ErrNotFound},
		{name: "one file", command: "/bin/x", mounts: at("/bin/x", "tools/good")},
		{name: "not in the volume", command: "/tools/none", mounts: at("/tools", "tools"), want: ErrNotFound, says: "there is no /tools/none"},
		{name: "interpreter missing", command: "/tools/bad", mounts: at("/tools", "tools"), want: ErrNotFound, says: "/tools/bad needs /lib64/loader, which isn't in the image"},
		{name: "interpreter mounted", command: "/tools/bad", mounts: at("/tools", "tools", "/lib64/loader", "loader")},
		{name: "interpreter mounted by its real path", command: "/usr/bin/lost", mounts: at("/usr/lib64/loader", "loader")},
		{name: "interpreter hidden", command: "/tools/good", mounts: at("/tools", "tools", "/bin", "empty"), want: ErrNotFound, says: "/tools/good needs /bin/sh"},
		{name: "interpreter beside it", command: "/tools/own", mounts: at("/tools", "tools")},
		{name: "later mount covers", command: "/bin/x", mounts: at("/bin/x", "tools/bad", "/bin/x", "tools/good")},
		{name: "link out of the volume", command: "/tools/up", mounts: at("/tools", "tools")},
		{name: "link to the container's root", command: "/tools/away", mounts: at("/tools", "tools"), want: ErrNotFound},
		{name: "link into a volume", command: "outside", mounts: at("/store/tool", "tools/good")},
		{name: "link into nothing", command: "outside", want: ErrNotFound},
		{name: "covered by a volume", command: "/bin/hidden", mounts: at("/bin", "tools"), want: ErrNotFound},
		{name: "not executable", command: "/bin/x", mounts: at("/bin/x", "plain"), want: ErrCantInvoke},
		{name: "pipe", command: "/bin/x", mounts: at("/bin/x", "fifo"), want: ErrCantInvoke},
		{name: "interpreter is a pipe", command: "/usr/bin/lost", mounts: at("/lib64/loader", "fifo")},
		{name: "program", command: "smi", programs: map[string]string{"/bin/smi": filepath.Join(host, "tools/good")}},
		{name: "program without its interpreter", command: "smi", programs: map[string]string{"/bin/smi": filepath.Join(host, "tools/bad")}, want: ErrNotFound, says: "/bin/smi needs /lib64/loader"},
		{name: "program on a volume's interpreter", command: "/bin/smi", mounts: at("/lib64/loader", "loader"), programs: map[string]string{"/bin/smi": filepath.Join(host, "tools/bad")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := FindCommand(root, tt.command, Search{Path: "/bin", Dir: "/", Mounts: tt.mounts, Programs: tt.programs})
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || (err != nil && !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("error %v, want %v with %q", err, tt.want, tt.says)
			}
			var missing *MissingInterpreter
			if errors.As(err, &missing) != strings.Contains(tt.says, "needs") {
				t.Errorf("%v isn't told apart", err)
			}
		})
	}
}

// TestKernelFilesAreNotRead: a script can name a file of the kernel as its interpreter. Such files aren't opened, for reading
// some has side effects (/proc/kmsg).
func TestKernelFilesAreNotRead(t *testing.T) {
	comm := fmt.Sprintf("/proc/%d/comm", os.Getpid())
	name, err := os.ReadFile(comm)
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(comm, []byte("#!/nowhere"), 0))
	t.Cleanup(func() { testutil.Must(t, os.WriteFile(comm, name, 0)) })
	root := makeTree(t, map[string]string{"script": "#!" + comm + "\n"})
	proc := []Mount{{At: "/proc", Source: "/proc"}}
	if err := FindCommand(root, "/script", Search{Mounts: proc}); err != nil {
		t.Errorf("%s was read: %v", comm, err)
	}
}

// Links that lead in circles end.
func TestLocateLoop(t *testing.T) {
	v := newView(makeTree(t, map[string]string{"a": "->b/x", "b": "->a/y"}), nil)
	if at, err := v.resolveLinks("/a/z", false); !errors.Is(err, unix.ELOOP) {
		t.Errorf("%q, %v", at, err)
	}
}
