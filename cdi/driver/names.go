package driver

import (
	"path"
	"slices"
	"strings"
)

// linkNames returns the links that a library needs beside it: its SONAME, and the name without a
// number, which some programs open.
func linkNames(file, soname string) []string {
	names := []string{}
	if soname == "" {
		return names
	}
	if soname != file {
		names = append(names, soname)
	}
	if stem, _, ok := strings.Cut(soname, ".so."); ok && stem+".so" != file && soname != file {
		names = append(names, stem+".so")
	}
	return names
}

// resolveNameConflicts assigns each name of a directory to one library. A file name takes precedence
// over a SONAME, a SONAME over a link without a number; among equals the first library gets the
// name.
func resolveNameConflicts(all []source) {
	taken := map[string]bool{}
	for _, s := range all {
		taken[s.to] = true
	}
	for _, plain := range []bool{false, true} {
		for i := range all {
			l := &all[i].lib
			l.Names = slices.DeleteFunc(l.Names, func(name string) bool {
				to := path.Join(path.Dir(l.File), name)
				if strings.HasSuffix(name, ".so") != plain {
					return false
				}
				lost := taken[to]
				taken[to] = true
				return lost
			})
		}
	}
}

// namesOf are the names under which programs find the libraries.
func namesOf(all []source) map[string]bool {
	names := map[string]bool{}
	for _, s := range all {
		if s.lib.File == "" {
			continue
		}
		names[path.Base(s.lib.File)] = true
		for _, name := range s.lib.Names {
			names[name] = true
		}
	}
	return names
}
