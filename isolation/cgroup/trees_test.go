package cgroup

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTrees(t *testing.T) {
	each(t, func(t *testing.T, h Hierarchy, path string) {
		trees, err := h.Trees()
		if err != nil {
			t.Fatal(err)
		}
		if h.Version == V2 {
			if !slices.Equal(trees, []Hierarchy{h}) {
				t.Errorf("got %+v", trees)
			}
			return
		}
		if !slices.Contains(trees, h) {
			t.Errorf("%+v isn't among %+v", h, trees)
		}
		devices := map[uint64]string{}
		for _, tree := range trees {
			var st unix.Stat_t
			if err := unix.Stat(tree.Root, &st); err != nil {
				t.Fatal(err)
			}
			if other, twice := devices[st.Dev]; twice {
				t.Errorf("%s is %s", tree.Root, other)
			}
			devices[st.Dev] = tree.Root
			if tree.Version == V2 && tree.Controller != "" || tree.Version == V1 && tree.Controller == "" {
				t.Errorf("%+v", tree)
			}
		}
	})
}
