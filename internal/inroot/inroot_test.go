package inroot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// makeTree makes a host directory with a secret beside a root, and opens the root.
func makeTree(t *testing.T) (root *os.File, host string) {
	t.Helper()
	host = t.TempDir()
	testutil.Must(t, os.MkdirAll(filepath.Join(host, "root/etc/sub"), 0o755))
	writeFile(t, filepath.Join(host, "secret"), "secret")
	writeFile(t, filepath.Join(host, "root/etc/file"), "inside")
	root, err := OpenRoot(filepath.Join(host, "root"))
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, root.Close()) })
	return root, host
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	testutil.Must(t, os.WriteFile(path, []byte(content), 0o644))
}

func TestReadFile(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(t *testing.T, root, host string)
		path string
		want string
		err  error
	}{
		{name: "plain", path: "etc/file", want: "inside"},
		{name: "absolute path is below the root", path: "/etc/file", want: "inside"},
		{name: "dots stop at the root", path: "../../../etc/file", want: "inside"},
		{name: "no way up", path: "../secret", err: fs.ErrNotExist},
		{
			name: "absolute link is below the root", path: "link", want: "inside",
			make: func(t *testing.T, root, _ string) { testutil.Must(t, os.Symlink("/etc/file", root+"/link")) },
		},
		{
			name: "link to the host", path: "link", err: fs.ErrNotExist,
			make: func(t *testing.T, root, host string) { testutil.Must(t, os.Symlink(host+"/secret", root+"/link")) },
		},
		{
			name: "link upwards", path: "link", err: fs.ErrNotExist,
			make: func(t *testing.T, root, _ string) { testutil.Must(t, os.Symlink("../../secret", root+"/link")) },
		},
		{
			name: "directory link to /", path: "d/etc/file", want: "inside",
			make: func(t *testing.T, root, _ string) { testutil.Must(t, os.Symlink("/", root+"/d")) },
		},
		{
			name: "loop", path: "loop", err: unix.ELOOP,
			make: func(t *testing.T, root, _ string) { testutil.Must(t, os.Symlink("loop", root+"/loop")) },
		},
		{name: "directory", path: "etc", err: ErrNotRegular},
		{
			name: "FIFO doesn't block", path: "fifo", err: ErrNotRegular,
			make: func(t *testing.T, root, _ string) { testutil.Must(t, unix.Mkfifo(root+"/fifo", 0o644)) },
		},
		{
			name: "too large", path: "big", err: ErrTooLarge,
			make: func(t *testing.T, root, _ string) {
				writeFile(t, root+"/big", "")
				testutil.Must(t, os.Truncate(root+"/big", 1<<40))
			},
		},
		{name: "missing", path: "etc/none", err: fs.ErrNotExist},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, host := makeTree(t)
			if tt.make != nil {
				tt.make(t, filepath.Join(host, "root"), host)
			}
			data, err := ReadFile(root, tt.path, 100)
			if !errors.Is(err, tt.err) || string(data) != tt.want {
				t.Errorf("%q, %v; want %q, %v", data, err, tt.want, tt.err)
			}
		})
	}
}

func TestMagicLinksAreNotFollowed(t *testing.T) {
	root, err := OpenRoot("/")
	testutil.Must(t, err)
	defer root.Close()
	if _, err := ReadFile(root, "proc/self/exe", 1<<30); !errors.Is(err, unix.ELOOP) {
		t.Errorf("error %v, want ELOOP", err)
	}
}

// TestKernelFiles: a link in the tree to a file of procfs or sysfs, mounted in it, is not read.
func TestKernelFiles(t *testing.T) {
	root, err := OpenRoot("/")
	testutil.Must(t, err)
	defer root.Close()
	for _, name := range []string{"proc/version", "proc/self/maps", "sys/kernel/uevent_seqnum"} {
		if _, err := ReadFile(root, name, 1<<20); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: error %v, want ErrNotRegular", name, err)
		}
	}
}

func TestDevicesAreNotOpened(t *testing.T) {
	testutil.NeedRoot(t)
	root, host := makeTree(t)
	// No driver has this number: opening the node would fail with ENXIO.
	testutil.Must(t, unix.Mknod(filepath.Join(host, "root/dev"), unix.S_IFCHR|0o666, int(unix.Mkdev(240, 77))))
	if _, err := OpenFile(root, "dev"); !errors.Is(err, ErrNotRegular) {
		t.Errorf("error %v, want ErrNotRegular", err)
	}
}

func TestReplace(t *testing.T) {
	root, host := makeTree(t)
	etc := filepath.Join(host, "root/etc")
	testutil.Must(t, os.Symlink(host+"/secret", etc+"/link"))
	testutil.Must(t, unix.Mkfifo(etc+"/fifo", 0o644))
	dir, err := OpenDir(root, "etc")
	testutil.Must(t, err)
	defer dir.Close()
	for _, name := range []string{"new", "file", "link", "fifo"} {
		testutil.Must(t, Replace(dir, name, []byte("new "+name), 0o640, Owner{}))
		fi, err := os.Lstat(filepath.Join(etc, name))
		testutil.Must(t, err)
		data, err := os.ReadFile(filepath.Join(etc, name))
		testutil.Must(t, err)
		if fi.Mode() != 0o640 || string(data) != "new "+name {
			t.Errorf("%s: %v %q", name, fi.Mode(), data)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "/etc/x", "../x"} {
		if err := Replace(dir, name, nil, 0o644, Owner{}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("replace %q: %v", name, err)
		}
	}
	if err := Replace(dir, "sub", nil, 0o644, Owner{}); !errors.Is(err, unix.EISDIR) && !errors.Is(err, fs.ErrExist) {
		t.Errorf("replace a directory: %v", err)
	}
	names, err := os.ReadDir(etc)
	testutil.Must(t, err)
	if len(names) != 5 { // new, file, link, fifo, sub
		t.Errorf("left behind: %v", names)
	}
	if data, err := os.ReadFile(host + "/secret"); err != nil || string(data) != "secret" {
		t.Errorf("secret was changed: %q, %v", data, err)
	}
}

func TestReplaceGivesOwner(t *testing.T) {
	testutil.NeedRoot(t)
	root, host := makeTree(t)
	dir, err := OpenDir(root, "etc")
	testutil.Must(t, err)
	defer dir.Close()
	testutil.Must(t, Replace(dir, "file", []byte("x"), 0o644, Owner{1234, 1235}))
	f, err := os.Open(filepath.Join(host, "root/etc/file"))
	testutil.Must(t, err)
	defer f.Close()
	if o, err := OwnerOf(f); err != nil || o != (Owner{1234, 1235}) {
		t.Errorf("owner %v, %v", o, err)
	}
}

func TestMkdir(t *testing.T) {
	root, host := makeTree(t)
	dir, err := OpenDir(root, "etc")
	testutil.Must(t, err)
	defer dir.Close()
	testutil.Must(t, Mkdir(dir, "d", 0o755))
	testutil.Must(t, Mkdir(dir, "d", 0o755))
	if fi, err := os.Stat(filepath.Join(host, "root/etc/d")); err != nil || !fi.IsDir() {
		t.Errorf("%v, %v", fi, err)
	}
}

// TestRace swaps a directory for a link to the host while files are read and
// written through it: what is found, and where it lands, is always inside.
func TestRace(t *testing.T) {
	root, host := makeTree(t)
	inside := filepath.Join(host, "root")
	testutil.Must(t, os.Mkdir(host+"/etc", 0o755))
	writeFile(t, host+"/etc/file", "secret")
	testutil.Must(t, os.Symlink("../etc", inside+"/evil"))
	testutil.Must(t, os.Symlink(host+"/etc", inside+"/worse"))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			for _, link := range []string{"/evil", "/worse"} {
				exchangeNames(t, inside+"/etc", inside+link)
				exchangeNames(t, inside+"/etc", inside+link)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 3000 {
		// An error is fine while the name is a link that leads nowhere.
		if data, _ := ReadFile(root, "etc/file", 100); string(data) == "secret" {
			t.Error("read a file of the host")
			break
		}
		if dir, err := OpenDir(root, "etc"); err == nil {
			testutil.Must(t, errors.Join(Replace(dir, "file", []byte("inside"), 0o644, Owner{}), dir.Close()))
		}
	}
	close(stop)
	wg.Wait()
	if data, err := os.ReadFile(host + "/etc/file"); err != nil || string(data) != "secret" {
		t.Errorf("a file of the host was written: %q, %v", data, err)
	}
	if names, err := os.ReadDir(host + "/etc"); err != nil || len(names) != 1 {
		t.Errorf("files were made on the host: %v, %v", names, err)
	}
}

func exchangeNames(t *testing.T, a, b string) {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		t.Error(err)
	}
}
