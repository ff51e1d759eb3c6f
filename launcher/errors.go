package launcher

import "errors"

// ErrNoRuntime says that there is no OCI runtime to run a container with.
var ErrNoRuntime = errors.New("no OCI runtime")
