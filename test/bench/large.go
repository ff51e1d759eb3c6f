package main

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-gpu/berth/test/image/oci"
)

// largeImage is the image's name in the registry. A changed recipe needs another name.
const largeImage = "large:1"

// stuff describes similar files of a layer.
type stuff struct {
	dir   string
	files int
	bytes int64   // of all together
	noise float64 // the part of the content that doesn't compress
}

// largeLayers resemble the layers of a training image: a distribution, a compiler and its headers,
// NVIDIA's libraries, Python's packages, weights, and a program.
func largeLayers() [][]stuff {
	const kb, mb = 1000, 1000 * 1000
	return [][]stuff{
		{{"usr/share", 5000, 40 * mb, 0.02}, {"usr/lib", 1200, 80 * mb, 0.2}},
		{{"usr/include", 4000, 30 * mb, 0}, {"usr/lib/gcc", 300, 170 * mb, 0.2}},
		{{"usr/local/cuda/lib64", 30, 900 * mb, 0.4}},
		{{"usr/lib/python3/site-packages", 20000, 180 * mb, 0.05}, {"usr/lib/python3/site-packages/torch/lib", 8, 400 * mb, 0.3}},
		{{"opt/weights", 4, 200 * mb, 1}},
		{{"app", 60, 600 * kb, 0.02}},
	}
}

// aboutLarge describes the image in words.
func aboutLarge() string {
	files, bytes := 0, int64(0)
	for _, layer := range largeLayers() {
		for _, s := range layer {
			files += s.files
			bytes += s.bytes
		}
	}
	return fmt.Sprintf("An image of %.1f GB in %d files and %d gzip layers, some of which compresses well and some not at all", float64(bytes)/1e9, files, len(largeLayers()))
}

// pushLarge makes the image unless the registry has it.
func pushLarge(ctx context.Context) error {
	name := registry + "/" + largeImage
	if _, err := timed(ctx, nil, "skopeo", "inspect", "--tls-verify=false", "--raw", "docker://"+name); err == nil {
		return nil
	}
	fmt.Fprintln(os.Stderr, "making an image of 2 GB (about a minute)")
	layout := filepath.Join(built, "large")
	if err := os.RemoveAll(layout); err != nil { // of one that was broken off
		return err
	}
	defer os.RemoveAll(layout)
	var layers []oci.Layer
	for i, kinds := range largeLayers() {
		r, w := io.Pipe()
		go func() { w.CloseWithError(archive(w, kinds, rand.New(rand.NewPCG(uint64(i), 2)))) }()
		layers = append(layers, oci.Layer{Tar: r, Compression: "gzip"})
	}
	if err := oci.Write(layout, oci.Image{Tag: "1", Layers: layers}); err != nil {
		return err
	}
	return push(ctx, layout+":1", largeImage)
}

// archive writes a layer.
func archive(w io.Writer, kinds []stuff, random *rand.Rand) error {
	t := tar.NewWriter(w)
	made := map[string]bool{}
	for _, s := range kinds {
		content := newContent(random, s.noise)
		for i, size := range sizes(random, s) {
			dir := s.dir
			if s.files > 100 { // as in packages
				dir = fmt.Sprintf("%s/p%03d", s.dir, i/40)
			}
			if err := directories(t, made, dir); err != nil {
				return err
			}
			h := &tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%s/file%05d", dir, i), Mode: 0o644, Size: size, ModTime: time.Unix(1_700_000_000, 0)}
			if err := t.WriteHeader(h); err != nil {
				return err
			}
			if _, err := io.CopyN(t, content, size); err != nil {
				return err
			}
		}
	}
	return t.Close()
}

// directories writes the missing parent directories of a name.
func directories(t *tar.Writer, made map[string]bool, name string) error {
	for i := range name + "/" {
		if i < len(name) && name[i] != '/' || made[name[:i]] {
			continue
		}
		made[name[:i]] = true
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name[:i] + "/", Mode: 0o755, ModTime: time.Unix(1_700_000_000, 0)})
		if err != nil {
			return err
		}
	}
	return nil
}

// sizes divides the bytes among the files: most files are much smaller than the average.
func sizes(random *rand.Rand, s stuff) []int64 {
	weights, sum := make([]float64, s.files), 0.0
	for i := range weights {
		weights[i] = random.ExpFloat64() * random.ExpFloat64()
		sum += weights[i]
	}
	all, left := make([]int64, s.files), s.bytes
	for i, w := range weights {
		all[i] = int64(w / sum * float64(s.bytes))
		left -= all[i]
	}
	all[0] += left
	return all
}

// content is an endless reader: words of a text, and between them bytes that don't compress.
type content struct {
	random *rand.Rand
	noise  float64
	words  []string
	rest   []byte
}

func newContent(random *rand.Rand, noise float64) *content {
	c := &content{random: random, noise: noise, words: make([]string, 4096)}
	for i := range c.words {
		word := make([]byte, 3+random.IntN(9))
		for k := range word {
			word[k] = byte('a' + random.IntN(26))
		}
		c.words[i] = string(word) + " "
	}
	return c
}

func (c *content) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		c.rest = c.block()
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// block is 4 kB of one kind.
func (c *content) block() []byte {
	const size = 4096
	if c.random.Float64() < c.noise {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(c.random.Uint32())
		}
		return b
	}
	var b strings.Builder
	for b.Len() < size {
		r := c.random.Float64()
		b.WriteString(c.words[int(r*r*r*float64(len(c.words)))]) // a few words are frequent
	}
	return []byte(b.String()[:size])
}
