package launcher

import "time"

// Settings are what people say of a container in docker's words. Each is checked
// before anything is made.
type Settings struct {
	// Labels are for people and tools; they go into the task's record and nowhere else.
	Labels map[string]string
	// StopSignal is a signal's name or number, "" the image's or SIGTERM, and
	// StopTimeout how long the task then has; zero means ten seconds, less than zero
	// for ever.
	StopSignal  string
	StopTimeout time.Duration
}
