// Package dirwatch reports changes of the files in a directory.
package dirwatch

import (
	"os"

	"golang.org/x/sys/unix"
)

// Watch is an inotify instance for one directory. The number of instances is limited by
// fs.inotify.max_user_instances, and closing one can take the kernel some milliseconds.
type Watch struct {
	// Changed receives a value after changes. One value stands for any number of changes.
	Changed <-chan struct{}
	file    *os.File
}

// Open watches a directory for events, such as unix.IN_MOVED_TO. Without inotify Changed never receives
// anything, so the caller also needs a timer.
func Open(dir string, events uint32) Watch {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return Watch{}
	}
	changed := make(chan struct{}, 1)
	w := Watch{Changed: changed, file: os.NewFile(uintptr(fd), "inotify")}
	if _, err := unix.InotifyAddWatch(fd, dir, events); err != nil {
		w.Close()
		return Watch{}
	}
	go forwardEvents(w.file, changed)
	return w
}

// forwardEvents returns when the file is closed.
func forwardEvents(file *os.File, changed chan<- struct{}) {
	var events [4096]byte
	for {
		if _, err := file.Read(events[:]); err != nil {
			return
		}
		select {
		case changed <- struct{}{}:
		default: // an earlier value wasn't received yet
		}
	}
}

// Close ends the watch. The zero value may be closed too.
func (w Watch) Close() {
	if w.file != nil {
		_ = w.file.Close() // nothing was written
	}
}
