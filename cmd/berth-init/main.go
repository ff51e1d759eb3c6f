// Command berth-init is the first process of a task that was started with --init:
// it runs the task's command, passes signals on to it, reaps whatever processes the
// command leaves behind, and ends with the command's exit code.
//
// It is run as "/dev/init -- COMMAND ARG…" inside a container and is nothing for
// people. It imports little: each task that has it pays for it.
package main

import (
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unsafe"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fail(125, "no command")
	}
	path, code := find(args[0], os.Getenv("PATH"))
	if path == "" {
		fail(code, args[0]+": not found or not executable")
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals) // before the command is there: none is lost
	pid, err := syscall.ForkExec(path, args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
		// A terminal's ^C reaches the command by the terminal, and only so.
		Sys: &syscall.SysProcAttr{Setpgid: true, Foreground: isTerminal(0)},
	})
	if err != nil {
		fail(codeOf(err), path+": "+err.Error())
	}
	go relay(signals, pid)
	os.Exit(reap(pid))
}

func fail(code int, text string) {
	_, _ = os.Stderr.WriteString("berth-init: " + text + "\n") // there is nobody else to tell
	os.Exit(code)
}

// find looks for a command as a shell does; code says what is wrong if there is none.
func find(name, path string) (at string, code int) {
	if strings.Contains(name, "/") {
		return name, 0
	}
	code = 127
	for _, dir := range strings.Split(path, ":") {
		file := dir + "/" + name
		if dir == "" {
			file = "./" + name
		}
		fi, err := os.Stat(file)
		switch {
		case err != nil || fi.IsDir():
		case fi.Mode()&0o111 != 0:
			return file, 0
		default:
			code = 126
		}
	}
	return "", code
}

func codeOf(err error) int {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return 127
	}
	return 126
}

// relay passes on what others send. What concerns this process alone isn't passed on.
func relay(signals <-chan os.Signal, pid int) {
	for s := range signals {
		sig, ok := s.(syscall.Signal)
		switch {
		case !ok, sig == syscall.SIGCHLD, sig == syscall.SIGURG, sig == syscall.SIGTTIN, sig == syscall.SIGTTOU:
		default:
			_ = syscall.Kill(pid, sig) // it may have ended
		}
	}
}

// reap waits for every process until the command's has ended.
func reap(command int) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			fail(125, "wait: "+err.Error())
		case pid != command:
		case status.Signaled():
			return 128 + int(status.Signal())
		case status.Exited():
			return status.ExitStatus()
		}
	}
}

func isTerminal(fd uintptr) bool {
	var termios syscall.Termios
	_, _, err := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TCGETS, uintptr(unsafe.Pointer(&termios)))
	return err == 0
}
