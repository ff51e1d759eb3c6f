package rootfs

import (
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const (
	passwd = "root:x:0:0:root:/root:/bin/sh\nbroken line\nuser:x:1000:100:U:/home/user:/bin/sh\n7:x:70:70::/seven:/bin/sh\nbig:x:4294967295:0::/:\nnohome:x:5:5:::\n"
	group  = "root:x:0:\nusers:x:100:user\nvideo:x:44:root, user\nwheel:x:10:user,root\nbad\n"
)

func TestFindUser(t *testing.T) {
	for _, tt := range []struct {
		who  string
		want User
		bad  bool
	}{
		{who: "", want: User{Home: "/root", Groups: []uint32{0, 44, 10}}},
		{who: "root", want: User{Home: "/root", Groups: []uint32{0, 44, 10}}},
		{who: "user", want: User{UID: 1000, GID: 100, Groups: []uint32{100, 44, 10}, Home: "/home/user"}},
		{who: "1000", want: User{UID: 1000, GID: 100, Groups: []uint32{100, 44, 10}, Home: "/home/user"}},
		{who: "user:video", want: User{UID: 1000, GID: 44, Groups: []uint32{44}, Home: "/home/user"}},
		{who: "user:7", want: User{UID: 1000, GID: 7, Groups: []uint32{7}, Home: "/home/user"}},
		{who: "7", want: User{UID: 70, GID: 70, Groups: []uint32{70}, Home: "/seven"}}, // a name first, then a number
		{who: "4321", want: User{UID: 4321, Groups: []uint32{0}, Home: "/"}},
		{who: "nohome", want: User{UID: 5, GID: 5, Groups: []uint32{5}, Home: "/"}},
		{who: "nobody", bad: true},
		{who: "user:nogroup", bad: true},
		{who: "4294967295", bad: true}, // "no id" for the kernel
		{who: "big", bad: true},
		{who: "-1", bad: true},
		{who: "user:", bad: true},
	} {
		t.Run(tt.who, func(t *testing.T) {
			got, err := findUser(passwd, group, tt.who)
			if (err != nil) != tt.bad {
				t.Fatalf("error %v, want one: %v", err, tt.bad)
			}
			if diff := cmp.Diff(tt.want, got); !tt.bad && diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzFindUser(f *testing.F) {
	f.Add(passwd, group, "user:video")
	f.Fuzz(func(t *testing.T, passwd, group, who string) {
		u, err := findUser(passwd, group, who)
		if err == nil && (u.UID == 1<<32-1 || u.GID == 1<<32-1 || !strings.HasPrefix(u.Home, "/")) {
			t.Errorf("%q is %+v", who, u)
		}
	})
}

// makeTree returns a root with files; a body that begins with "->" is a link.
func makeTree(t *testing.T, files map[string]string) *os.File {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, body := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if link, ok := strings.CutPrefix(body, "->"); ok {
			err = errors.Join(err, os.Symlink(link, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(body), 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestReadFile(t *testing.T) {
	root := makeTree(t, map[string]string{
		"etc/passwd": "inside", "abs": "->/etc/passwd", "dots": "->../../../../../etc/passwd", "out": "->/proc/self/root/etc/passwd",
		"loop": "->loop", "large": strings.Repeat("x", 100), "dir/file": "",
	})
	if err := unix.Mkfifo(filepath.Join(root.Name(), "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, want string }{
		{"/etc/passwd", "inside"},
		{"etc/passwd", "inside"},
		{"abs", "inside"},
		{"dots", "inside"},
		{"../../etc/passwd", "inside"},
		{"out", ""},
		{"loop", ""},
		{"large", ""},
		{"dir", ""},
		{"pipe", ""},
		{"missing", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ReadFile(root, tt.name, 50)
			if string(got) != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestMkdirAll(t *testing.T) {
	root := makeTree(t, map[string]string{"file": "", "here/x": "", "in": "->/here", "out": "->../../.."})
	for _, tt := range []struct{ name, made string }{
		{"/a/b/c", "a/b/c"}, {"in/new", "here/new"}, {"../../d", "d"}, {"out/e", "e"}, {"/", "here"}, {"file/x", ""}, {"here", "here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := MkdirAll(root, tt.name)
			if (err == nil) != (tt.made != "") {
				t.Fatalf("error %v", err)
			}
			if fi, err := os.Lstat(filepath.Join(root.Name(), tt.made)); err != nil || !fi.IsDir() {
				t.Errorf("%s: %v", tt.made, err)
			}
		})
	}
	if others, err := os.ReadDir(filepath.Dir(root.Name())); err != nil || len(others) != 1 {
		t.Errorf("made outside: %v, %v", others, err)
	}
}

func TestFindCommand(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	foreign := append([]byte(nil), self[:64]...)
	foreign[18], foreign[19] = byte(elf.EM_S390), 0
	root := makeTree(t, map[string]string{
		"bin/sh": "binary", "usr/bin/tool": "#!/bin/sh -e\n", "work/local": "binary", "bin/link": "->sh", "bin/dangling": "->nothing",
		"bin/script": "#!/opt/interpreter\n", "bin/relative": "#!sh\n", "bin/empty": "", "bin/odd": "#!\n", "bin/foreign": string(foreign),
		"first/dup": "", "second/dup": "x", "bin/viascript": "#!/bin/script\n", "bin/throughfile": "#!/bin/sh/x\n", "bin/loop": "#!/bin/loop\n",
	})
	for _, name := range []string{"bin/plain", "first/dup"} {
		path := filepath.Join(root.Name(), name)
		if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Chmod(path, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	s := Search{Path: "/bin:/usr/bin", Dir: "/work"}
	for _, tt := range []struct {
		name string
		s    Search
		want error
	}{
		{"sh", s, nil},
		{"tool", s, nil},
		{"/usr/bin/tool", s, nil},
		{"./local", s, nil},
		{"../bin/sh", s, nil},
		{"link", s, nil},
		{"empty", s, nil},
		{"odd", s, nil},
		{"local", s, ErrNotFound},
		{"missing", s, ErrNotFound},
		{"/missing", s, ErrNotFound},
		{"", s, ErrNotFound},
		{"dangling", s, ErrNotFound},
		{"/bin/sh/x", s, ErrNotFound},
		{"script", s, ErrNotFound},
		{"relative", s, ErrNotFound},
		{"viascript", s, ErrNotFound},
		{"throughfile", s, ErrNotFound},
		{"loop", s, nil},
		{"plain", s, ErrCantInvoke},
		{"/bin", s, ErrCantInvoke},
		{"foreign", s, ErrCantInvoke},
		{"local", Search{Path: ":/bin", Dir: "/work"}, nil},
		{"dup", Search{Path: "/first:/second"}, nil},
		{"dup", Search{Path: "/first"}, ErrCantInvoke},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := FindCommand(root, tt.name, tt.s); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// The interpreter of real programs is what debug/elf says it is.
func TestInspect(t *testing.T) {
	checked := 0
	for _, path := range []string{"/proc/self/exe", "/bin/sh", "/bin/busybox", "/usr/bin/env"} {
		f, err := elf.Open(path)
		if err != nil {
			continue // not every machine has all of these
		}
		want := program{}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				data := make([]byte, p.Filesz)
				if _, err := p.ReadAt(data, 0); err != nil {
					t.Fatal(err)
				}
				want.interpreter = strings.TrimRight(string(data), "\x00")
			}
		}
		f.Close()
		r, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := inspectProgram(r); got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
		r.Close()
		checked++
	}
	if checked == 0 {
		t.Error("no program was checked")
	}
}

func FuzzInspect(f *testing.F) {
	self, err := os.ReadFile("/bin/sh")
	if err == nil {
		f.Add(string(self[:min(len(self), 4096)]))
	}
	f.Add("#! /bin/sh -x\n")
	f.Fuzz(func(t *testing.T, content string) {
		if p := inspectProgram(strings.NewReader(content)); len(p.interpreter) > maxInterpreter {
			t.Errorf("interpreter of %d bytes", len(p.interpreter))
		}
	})
}
