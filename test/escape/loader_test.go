package escape

// loaderAttacks are attacks by the environment of the image, which a hook inherits: libraries to preload
// or audit, search paths, and the working directory.
func loaderAttacks() []attack {
	const preload = "CVE-2025-23266: a hook ran with the image's environment in the image's root"
	variable := func(name, value, file string) attack {
		return attack{
			name: "loader/" + name, class: preload, gained: programRan,
			build: func(s *scene) {
				s.addMarkedLibrary(file)
				s.env(name + "=" + value)
			},
		}
	}
	return []attack{
		variable("LD_PRELOAD", "/proc/self/cwd/evil.so", "evil.so"),
		variable("LD_AUDIT", "/proc/self/cwd/evil.so", "evil.so"),
		variable("LD_LIBRARY_PATH", "/proc/self/cwd/lib", "lib/libhelper.so.1"),
		{
			name: "loader/PATH", class: preload, gained: programRan,
			build: func(s *scene) {
				s.addMarkedProgram("bin/naive-helper")
				s.addMarkedProgram("bin/ldconfig")
				s.addMarkedProgram("bin/nvidia-smi")
				s.env("PATH=/proc/self/cwd/bin:/bin")
			},
		},
		{
			name: "loader/cwd", class: "CVE-2025-23266: a hook's working directory is the image's root", gained: programRan,
			build: func(s *scene) { s.addMarkedLibrary("plugin.so") },
		},
	}
}

// programAttacks are attacks by programs of the image that an injector runs, or that have the names of
// such programs.
func programAttacks() []attack {
	return []attack{{
		name: "program/ldconfig", class: "CVE-2024-0136, CVE-2024-0137: a program was run against the image's root",
		gained: programRan,
		build: func(s *scene) {
			for _, file := range []string{"sbin/ldconfig", "sbin/ldconfig.real", "usr/sbin/ldconfig", "usr/bin/nvidia-smi", "usr/bin/nvidia-modprobe"} {
				s.addMarkedProgram(file)
			}
		},
	}}
}
