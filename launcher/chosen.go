package launcher

// ChosenRuntime is the OCI runtime that a launch with these options takes on this
// machine. The error is the launch's.
func ChosenRuntime(o Options) (string, error) {
	h, err := newHost(o.withDefaults())
	if err != nil {
		return "", err
	}
	return h.runtime, nil
}
