package apptainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// The user of the scripts has subordinate ids. ann is in the group lab as well.
const (
	user    = "ann"
	userID  = 4711
	labID   = 4800
	homeDir = "/home/" + user
	// programDir is the first directory in the scripts' PATH.
	programDir = "/opt/words"
)

// script is what a user types.
type script struct {
	Text string
	// Program is run in the place of apptainer.
	Program string
}

// outcome is the result of a script.
type outcome struct {
	Out, Err string
	// End is "exit code N" or "killed by SIGNAME" of the process that the script became.
	End string
	// Files are what is left in the home directory and in /tmp, with modes and contents.
	Files []string
}

// runScript runs the script that it reads, as the user, and writes the outcome. It runs as root inside the server. The home
// directory and /tmp are empty file systems, seen by this process and its children only. Processes that the script leaves
// in the background are not waited for.
func runScript(in io.Reader, out io.Writer) error {
	var s script
	if err := json.NewDecoder(in).Decode(&s); err != nil {
		return err
	}
	runtime.LockOSThread() // and never unlocked: the process ends with this function
	if err := errors.Join(mountFresh(), writeProgram(s.Program)); err != nil {
		return err
	}
	o, err := runAsUser(s)
	if err != nil {
		return err
	}
	for _, dir := range []string{homeDir, "/tmp"} {
		files, err := listFiles(dir)
		if err != nil {
			return err
		}
		o.Files = append(o.Files, files...)
	}
	return json.NewEncoder(out).Encode(o)
}

func mountFresh() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", homeDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=700,uid=%d,gid=%[1]d", userID)),
		unix.Mount("tmpfs", programDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"),
		unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"),
	)
}

// writeProgram makes apptainer, a link, because a shell would remove variables with odd names, and run-singularity, which
// the kernel starts for an image file.
func writeProgram(path string) error {
	return errors.Join(
		os.Symlink(path, programDir+"/apptainer"),
		os.WriteFile(programDir+"/run-singularity", []byte("#!/bin/sh\nexec apptainer run \"$@\"\n"), 0o755),
	)
}

func runAsUser(s script) (o outcome, err error) {
	var outputs [2]*os.File
	for i := range outputs {
		// Files, because processes in the background keep pipes open.
		if outputs[i], err = os.CreateTemp("/run", "output-"); err != nil {
			return o, err
		}
		defer outputs[i].Close()
		defer os.Remove(outputs[i].Name())
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", s.Text)
	cmd.Dir, cmd.Stdout, cmd.Stderr = homeDir, outputs[0], outputs[1]
	cmd.Env = []string{
		"PATH=" + programDir + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + homeDir, "USER=" + user, "LOGNAME=" + user,
		"SHELL=/bin/bash", "TERM=dumb", "LANG=C.UTF-8",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: userID, Gid: userID, Groups: []uint32{userID, labID}},
	}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return o, err
	}
	o.End = describeEnd(cmd.ProcessState.Sys().(syscall.WaitStatus))
	if ctx.Err() != nil {
		o.End = "doesn't end"
	}
	for f, text := range map[*os.File]*string{outputs[0]: &o.Out, outputs[1]: &o.Err} {
		data, err := os.ReadFile(f.Name())
		if err != nil {
			return o, err
		}
		*text = string(data)
	}
	return o, nil
}

func describeEnd(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}

// listFiles describes the files below a directory. Files of the programs themselves, such as caches, and images are left out.
func listFiles(top string) (files []string, err error) {
	err = filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && slices.Contains([]string{".apptainer", ".local", ".cache", ".config"}, e.Name()) {
			return filepath.SkipDir
		}
		if path == top || strings.HasSuffix(path, ".sif") {
			return nil
		}
		line, err := describeFile(path, e)
		files = append(files, line)
		return err
	})
	return files, err
}

func describeFile(path string, e fs.DirEntry) (string, error) {
	info, err := e.Info()
	if err != nil {
		return "", err
	}
	stat := info.Sys().(*syscall.Stat_t)
	line := fmt.Sprintf("%s %v %d:%d", path, info.Mode(), stat.Uid, stat.Gid)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		return line + " -> " + target, err
	case info.Mode().IsRegular():
		data, err := os.ReadFile(path)
		if err == nil && len(data) < 200 && utf8.Valid(data) {
			return fmt.Sprintf("%s %q", line, data), nil
		}
		return fmt.Sprintf("%s %d bytes", line, info.Size()), err
	}
	return line, nil
}
