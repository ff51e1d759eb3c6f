package image

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// LayerSummary is an unpacked layer.
type LayerSummary struct {
	Digest   string    `json:"digest"` // the chain id
	Size     int64     `json:"size"`   // of the files, in bytes
	Unpacked time.Time `json:"unpacked"`
	// Image is the path of the SIF file that it is from; "" for others.
	Image string `json:"image,omitempty"`
	// Tasks are the ids of the tasks that use it.
	Tasks []string `json:"tasks"`
}

// UnnamedLayers returns the layers that belong to no image with a name, the largest first: those of layouts and
// archives, and those of images whose name stands for a newer image by now. tasks is the directory of the tasks. An
// error tells what couldn't be read; the other layers are returned all the same.
func (s Store) UnnamedLayers(tasks string) (all []LayerSummary, err error) {
	all = []LayerSummary{}
	records, err := s.listRecords()
	named := s.neededLayers(records)
	users, e := listUsers(tasks)
	err = errors.Join(err, e)
	for _, home := range s.listLayerDirs() {
		name := filepath.Base(home)
		fi, e := os.Stat(home)
		if named[name] || e != nil || !pathExists(filesDir(home)) {
			continue
		}
		image, _ := smallfile.String(filepath.Join(home, "image")) // only SIF files have one
		all = append(all, LayerSummary{
			Digest: filepath.Base(filepath.Dir(home)) + ":" + name, Size: layerSize(home), Unpacked: fi.ModTime(), Image: image,
			Tasks: append([]string{}, users[name]...),
		})
	}
	slices.SortStableFunc(all, compareSizes)
	return all, err
}

// compareSizes orders the larger layer first.
func compareSizes(a, b LayerSummary) int { return cmp.Compare(b.Size, a.Size) }

// listUsers returns the tasks that use each layer.
func listUsers(tasks string) (users map[string][]string, err error) {
	entries, err := os.ReadDir(tasks)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for tasks: %w", err)
	}
	users, err = map[string][]string{}, nil
	for _, e := range entries {
		data, bad := readLayersFile(filepath.Join(tasks, e.Name()))
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("task %s %w", e.Name(), bad))
		}
		for line := range bytes.Lines(data) {
			if name := strings.TrimSpace(string(line)); !strings.HasPrefix(name, imageKey) {
				users[name] = append(users[name], e.Name())
			}
		}
	}
	return users, err
}
