package sim

import "errors"

// Control changes the node that the caller is in.
func Control(args ...string) error { return errors.New("not yet") }
