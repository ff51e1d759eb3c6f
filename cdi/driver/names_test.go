package driver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResolveNameConflicts(t *testing.T) {
	lib := func(file string, names ...string) source {
		return source{to: file, lib: Library{File: file, Names: names}}
	}
	files := []source{
		lib("lib64/liba.so.1", "liba.so"), lib("lib64/libb.so.9", "liba.so.1", "libb.so"), lib("lib64/libc.so.9", "libb.so.2", "libb.so"),
		lib("lib/libb.so.9", "libb.so"), lib("lib64/libd.so.9", "libb.so.2"),
	}
	resolveNameConflicts(files)
	var got [][]string
	for _, f := range files {
		got = append(got, f.lib.Names)
	}
	want := [][]string{{"liba.so"}, {"libb.so"}, {"libb.so.2"}, {"libb.so"}, {}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
