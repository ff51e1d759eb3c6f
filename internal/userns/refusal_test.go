package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestExplain: each switch of the kernel is named with what turns it.
func TestExplain(t *testing.T) {
	const (
		clone    = "sys/kernel/unprivileged_userns_clone"
		apparmor = "sys/kernel/apparmor_restrict_unprivileged_userns"
		most     = "sys/user/max_user_namespaces"
		filter   = "self/status"
		label    = "self/attr/current"
		reload   = "apparmor_parser -r /etc/apparmor.d/berth"
		link     = "ln -s /usr/share/berth/apparmor.d/berth /etc/apparmor.d/berth && " + reload
		install  = "install berth's package, which has a profile for /usr/bin/berth, or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
		outside  = "call berth outside of that container or service, or have the profile allow userns, capability and mount"
	)
	started := func(errno unix.Errno) error {
		return &fs.PathError{Op: "fork/exec", Path: "/proc/self/exe", Err: errno}
	}
	restricted := Refusal{"kernel.apparmor_restrict_unprivileged_userns is 1, and no AppArmor profile allows them to /usr/bin/berth", reload}
	with := func(fix string) Refusal { return Refusal{restricted.Reason, fix} }
	unknown := Refusal{"the kernel refuses them to /usr/bin/berth (operation not permitted), because of a security module or a chroot", "have the module's policy allow /usr/bin/berth user namespaces (its log says what it refuses), or call berth outside of the chroot"}
	for _, c := range []struct {
		name    string
		err     error
		proc    map[string]string
		missing []string // files of the package
		want    Refusal
	}{
		{"no namespaces", started(unix.ENOSPC), map[string]string{most: "0\n"}, nil, Refusal{"user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000"}},
		{"no mount namespaces", started(unix.ENOSPC), map[string]string{most: "9\n", "sys/user/max_mnt_namespaces": "0\n"}, nil, Refusal{"user.max_mnt_namespaces is 0", "sysctl -w user.max_mnt_namespaces=15000"}},
		{"all in use", started(unix.ENOSPC), map[string]string{most: "20000\n"}, nil, Refusal{"as many are in use as user.max_user_namespaces allows, which is 20000, or as one around this process does", "sysctl -w user.max_user_namespaces=40000, or end processes that have one (lsns -t user lists them)"}},
		{"Debian's switch", started(unix.EPERM), map[string]string{clone: "0\n", most: "15000\n"}, nil, Refusal{"kernel.unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1"}},
		{"AppArmor, without a mapping", started(unix.EPERM), map[string]string{clone: "1\n", apparmor: "1\n"}, nil, restricted},
		{"AppArmor, without a namespace", started(unix.EACCES), map[string]string{apparmor: "1\n", label: "unconfined\n"}, nil, restricted},
		{"AppArmor, without capabilities", fmt.Errorf("%w: capability: %w", ErrNoRights, unix.EPERM), map[string]string{apparmor: "1\n", label: "unprivileged_userns (enforce)\n"}, nil, restricted},
		{"profile that isn't linked", started(unix.EPERM), map[string]string{apparmor: "1\n"}, []string{"/etc/apparmor.d/berth"}, with(link)},
		{"no package", started(unix.EPERM), map[string]string{apparmor: "1\n"}, []string{"/etc/apparmor.d/berth", "/usr/share/berth/apparmor.d/berth"}, with(install)},
		{"profile of an engine", fmt.Errorf("%w: mount: %w", ErrNoRights, unix.EACCES), map[string]string{apparmor: "1\n", label: "docker-default (enforce)\n"}, nil, Refusal{"AppArmor's profile docker-default around this process forbids them", outside}},
		{"filter of an engine", started(unix.EPERM), map[string]string{filter: "NoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n", apparmor: "1\n", label: "berth (unconfined)\n"}, nil, Refusal{"a system call filter (seccomp) around this process forbids them, as those of container engines do", "call berth outside of that container or service, or have the filter allow clone and unshare with CLONE_NEWUSER"}},
		{"another module", started(unix.EPERM), map[string]string{filter: "Seccomp:\t0\n", clone: "1\n"}, nil, unknown},
		{"old kernel", started(unix.EINVAL), nil, nil, Refusal{"this kernel has none", "boot a kernel with CONFIG_USER_NS"}},
		{"another error", started(unix.ENOMEM), map[string]string{most: "0\n"}, nil, Refusal{}},
	} {
		proc := t.TempDir()
		for name, text := range c.proc {
			path := filepath.Join(proc, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		h := host{proc, "/usr/bin/berth", func(path string) bool { return !slices.Contains(c.missing, path) }}
		got, ok := h.explain(c.err)
		if diff := cmp.Diff(c.want, got); diff != "" || ok != (c.want != Refusal{}) {
			t.Errorf("%s (-want +got): %s", c.name, diff)
		}
	}
	elsewhere, _ := Explain(t.TempDir(), "/home/alice/bin/berth", started(unix.EPERM))
	if want := "the kernel refuses them to /home/alice/bin/berth (operation not permitted), because of a security module or a chroot"; elsewhere.Reason != want {
		t.Errorf("got %q", elsewhere.Reason)
	}
	copied := host{"", "/home/alice/bin/berth", func(string) bool { return true }}
	if got := copied.fixAppArmor(); got != install {
		t.Errorf("a program elsewhere: %s", got)
	}
}

// TestCheckRights: root of a user namespace has its rights unless it lacks capabilities, and the check changes neither mounts nor
// capabilities.
func TestCheckRights(t *testing.T) {
	if os.Getenv("BERTH_TEST_RIGHTS") != "" {
		fmt.Printf("%v", CheckRights())
		return
	}
	run := func(words ...string) string {
		cmd := exec.Command(words[0], append(words[1:], os.Args[0], "-test.run=^TestCheckRights$")...)
		cmd.Env = append(os.Environ(), "BERTH_TEST_RIGHTS=1")
		Enter(cmd)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got, _, _ := strings.Cut(string(out), "PASS")
		return got
	}
	if got := run("env"); got != "<nil>" {
		t.Errorf("with all rights: %s", got)
	}
	if got := run("setpriv", "--bounding-set=-all"); got != "root of the user namespace has no rights in it: capability: operation not permitted" {
		t.Errorf("without capabilities: %s", got)
	}
}
