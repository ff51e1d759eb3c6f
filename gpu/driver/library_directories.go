package driver

// LibraryDirectories are the directories below the driver root where distributions, NVIDIA's installer
// and Google's (usr/local/nvidia) put the driver's 64-bit libraries. Of two files of one name the
// first counts.
func LibraryDirectories() []string {
	dirs := []string{"usr/lib64", "lib64", "usr/lib", "lib"}
	for _, triple := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu"} {
		dirs = append(dirs, "usr/lib/"+triple, "lib/"+triple)
	}
	return append(dirs, "usr/local/nvidia/lib64")
}
