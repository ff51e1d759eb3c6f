package escape

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// readFiles are the files of an image that injectors read.
func readFiles() []string {
	return []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d/00-berth.conf", "usr/local/cuda/compat/libcuda.so.999.1"}
}

// readAttacks are attacks on readers: endless files, files of other types, files with a false size.
func readAttacks() []attack {
	const class = "denial of service: the injector reads what the image gives it"
	var all []attack
	for _, name := range readFiles() {
		put := func(kind string, build func(s *scene, path string)) {
			all = append(all, attack{name: "read/" + name + "/" + kind, class: class, gained: startHung, build: func(s *scene) {
				s.hangs = true
				s.clear(name)
				build(s, s.in(name))
			}})
		}
		put("pipe", func(s *scene, path string) { s.runCommand(unix.Mkfifo(path, 0o644)) })
		put("device", func(s *scene, path string) { s.node(path, device{major: 1, minor: 5}) }) // zero
		put("huge", func(s *scene, path string) {
			s.write(path, "glibc-ld.so.cache1.1")
			s.runCommand(os.Truncate(path, 1<<30))
		})
		all[len(all)-1].not = map[string]string{"engine": "an image's layer has no holes: the engine would store a gigabyte, and reads it first"}
	}
	return slices.Concat(all, cacheAttacks(), libraryAttacks())
}

// cacheAttacks are attacks by invalid loader caches. The corpus is made of the machine's own cache with
// fixed seeds.
func cacheAttacks() []attack {
	lie := func(name string, change func(cache []byte) []byte) attack {
		return attack{name: "cache/" + name, class: "a parser believes the image's cache", gained: startHung, build: func(s *scene) {
			cache, err := os.ReadFile("/etc/ld.so.cache")
			s.runCommand(err)
			s.clear("etc/ld.so.cache")
			s.runCommand(os.WriteFile(s.in("etc/ld.so.cache"), change(cache), 0o644))
		}}
	}
	all := []attack{
		lie("count", func(c []byte) []byte { binary.LittleEndian.PutUint32(c[20:], 1<<32-1); return c }),
		lie("count more", func(c []byte) []byte { binary.LittleEndian.PutUint32(c[20:], uint32(len(c)/24)+100); return c }),
		lie("strings beyond", func(c []byte) []byte { binary.LittleEndian.PutUint32(c[48+4:], 1<<32-1); return c }),
		lie("cut", func(c []byte) []byte { return c[:200] }),
		lie("unterminated", func(c []byte) []byte {
			binary.LittleEndian.PutUint32(c[48+4:], uint32(len(c)-1))
			c[len(c)-1] = 'x'
			return c
		}),
	}
	return append(all, attack{
		name: "cache/random", class: "a parser believes the image's cache", gained: gainOfRepeats,
		build: func(s *scene) {
			cache, err := os.ReadFile("/etc/ld.so.cache")
			s.runCommand(err)
			s.runForSeeds(func(seed uint64) {
				lying := corruptBytes(bytes.Clone(cache), 28, seed)
				binary.LittleEndian.PutUint32(lying[48+4:], uint32(len(lying))+1)
				s.runCommand(os.WriteFile(s.in("etc/ld.so.cache"), lying, 0o644))
			})
		},
	})
}

// libraryAttacks are attacks by libraries with invalid headers.
func libraryAttacks() []attack {
	const class = "a parser believes the image's libraries"
	library := "usr/local/cuda/compat/libcuda.so.999.1"
	change := func(s *scene, f func(elf []byte) []byte) {
		s.library(library, "libcuda.so.1")
		elf, err := os.ReadFile(s.in(library))
		s.runCommand(err)
		s.runCommand(os.WriteFile(s.in(library), f(elf), 0o644))
	}
	lie := func(name string, f func(elf []byte) []byte) attack {
		return attack{name: "elf/" + name, class: class, gained: startHung, build: func(s *scene) { change(s, f) }}
	}
	beyond := func(elf []byte) []byte { binary.LittleEndian.PutUint64(elf[32:], 1<<62); return elf }
	return []attack{
		lie("headers beyond", beyond),
		lie("cut", func(elf []byte) []byte { return elf[:70] }),
		{name: "elf/random", class: class, gained: gainOfRepeats, build: func(s *scene) {
			s.runForSeeds(func(seed uint64) {
				change(s, func(elf []byte) []byte {
					if s.entryPoint == "naive" { // a library that is certainly read
						elf = beyond(elf)
					}
					return corruptBytes(elf, 40, seed)
				})
			})
		}},
	}
}

// runForSeeds makes the attack once for each of many seeds.
func (s *scene) runForSeeds(prepare func(seed uint64)) {
	s.play = func() {
		s.putRequest()
		s.store()
		spec, err := os.ReadFile(filepath.Join(s.bundle, "config.json"))
		s.runCommand(err)
		for seed := range uint64(max(3, *rounds/100)) {
			prepare(seed)
			s.runCommand(os.WriteFile(filepath.Join(s.bundle, "config.json"), spec, 0o600))
			s.runOnce()
			if s.won = s.checkAll(); s.won != "" {
				return
			}
		}
	}
}

// gainOfRepeats is the gain of an attack that is made many times.
func gainOfRepeats(s *scene) string { return s.won }

// corruptBytes changes some bytes from an offset on. The same seed makes the same changes.
func corruptBytes(data []byte, from int, seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 0))
	for range 64 {
		data[from+random.IntN(len(data)-from)] = byte(random.Uint32())
	}
	return data
}

// library makes a library in the image with this soname.
func (s *scene) library(name, soname string) {
	s.t.Helper()
	s.clear(name)
	empty := filepath.Join(s.t.TempDir(), "empty.c")
	s.write(empty, "int nothing;\n")
	out, err := exec.Command("cc", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,"+soname, "-o", s.in(name), empty).CombinedOutput()
	if err != nil {
		s.t.Fatalf("cc: %v: %s", err, out)
	}
}

// sourceAttacks are attacks that make a path of the image the source of a mount.
func sourceAttacks() []attack {
	const class = "CVE-2024-0132, CVE-2025-23359: a path of the image was the source of a mount"
	compat := "usr/local/cuda/compat/libcuda.so.999.1"
	inside := func(s *scene, names ...string) {
		for _, dir := range []string{"/usr/local/nvidia/lib64/libcuda.so.1", "/usr/local/berth/nvidia/lib64/libcuda.so.1", "/" + compat, "/etc/ld.so.cache"} {
			s.addCommand("cat " + dir)
			for _, name := range names {
				s.addCommand("cat " + dir + name)
			}
		}
	}
	return []attack{
		{name: "source/file", class: class, gained: fileWasRead, build: func(s *scene) {
			s.link(compat, filepath.Join(s.outside, "secret"))
			inside(s)
		}},
		{name: "source/climbing", class: class, gained: fileWasRead, build: func(s *scene) {
			s.link(compat, strings.Repeat("../", 40)+filepath.Join(s.outside, "secret"))
			inside(s)
		}},
		{name: "source/directory of files", class: class, gained: fileWasRead, build: func(s *scene) {
			s.link("usr/local/cuda/compat", s.outside)
			inside(s)
		}},
		{name: "source/parent", class: class, gained: fileWasRead, build: func(s *scene) {
			s.runCommand(os.MkdirAll(filepath.Join(s.outside, "compat"), 0o755))
			s.write(filepath.Join(s.outside, "compat/libcuda.so.999.1"), s.secret)
			s.before = list(s.t, s.outside)
			s.link("usr/local/cuda", s.outside)
			inside(s)
		}},
		{name: "source/whole host", class: class, gained: fileWasRead, build: func(s *scene) {
			s.link(compat, "/")
			inside(s, filepath.Join(s.outside, "secret"))
		}},
		{name: "source/read only root", class: class, gained: fileWasRead, build: func(s *scene) {
			s.link(compat, filepath.Join(s.outside, "secret"))
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Destination: "/run", Type: "tmpfs", Source: "tmpfs"})
			s.env("LD_LIBRARY_PATH=/usr/local/nvidia/lib64")
			inside(s)
		}},
	}
}
