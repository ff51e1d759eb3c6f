package sim

import "path/filepath"

// debianDir is where a fetched driver of the version is.
func debianDir(cache, version string) string {
	return filepath.Join(cache, "debian-"+version)
}
