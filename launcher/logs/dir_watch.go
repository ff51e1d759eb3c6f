package logs

import (
	"os"

	"golang.org/x/sys/unix"
)

// dirWatch tells when files of a directory are written to, made, renamed or removed. The
// zero value, which is all there is without inotify, whose instances are limited, never does.
type dirWatch struct {
	changed chan struct{} // one value stands for any number of changes
	file    *os.File
}

func watchDir(dir string) dirWatch {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return dirWatch{}
	}
	w := dirWatch{changed: make(chan struct{}, 1), file: os.NewFile(uintptr(fd), "inotify")}
	const mask = unix.IN_MODIFY | unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_DELETE_SELF
	if _, err := unix.InotifyAddWatch(fd, dir, mask); err != nil {
		w.close()
		return dirWatch{}
	}
	go w.forwardEvents()
	return w
}

// forwardEvents ends when the watch is closed.
func (w dirWatch) forwardEvents() {
	var events [4096]byte
	for {
		if _, err := w.file.Read(events[:]); err != nil {
			return
		}
		select {
		case w.changed <- struct{}{}:
		default: // the one before wasn't looked at yet
		}
	}
}

func (w dirWatch) close() {
	if w.file != nil {
		_ = w.file.Close() // nothing was written
	}
}
