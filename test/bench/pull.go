package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const aboutPull = "%s, from a registry on this machine's loopback to a root file system: by skopeo into an OCI layout that umoci unpacks, and by berth into an empty store; %d rounds. %s berth compares each layer with its digests, compressed and unpacked. umoci's unpack also writes a list of all files with their digests, which its raw unpack doesn't. The registry's share of the processors is in the times of all, but not in CPU. In a host of Debian's packages: %s, %s."

// place is a file system to which images are unpacked.
type place struct {
	name, dir, about string
	raw              bool // whether umoci's raw unpack is measured too
}

func places() []place {
	return []place{
		{"in memory", os.TempDir(), "All is written to memory (tmpfs), where nothing has to be synced.", true},
		{"on disk", built, "All is written to a disk and is on it in the end: berth syncs by itself, and `sync -f` comes after all, in their times.", false},
	}
}

// pulls compares ways of pulling and unpacking a large image. They take seconds, so they are
// repeated less often.
func pulls(ctx context.Context, o options) ([]section, error) {
	if err := pushLarge(ctx); err != nil {
		return nil, err
	}
	rounds := max(1, o.rounds/13)
	var all []section
	for _, p := range places() {
		results, err := p.measure(ctx, rounds)
		if err != nil {
			return nil, err
		}
		about := fmt.Sprintf(aboutPull, aboutLarge(), rounds, p.about, firstLine("skopeo", "--version"), firstLine("umoci", "--version"))
		all = append(all, compare("pull and unpack 2 GB, "+p.name, about, results))
	}
	return all, nil
}

func (p place) measure(ctx context.Context, rounds int) (results []result, err error) {
	dir, err := os.MkdirTemp(p.dir, "pull")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	config := fmt.Appendf(nil, "state = %q\ndata = %q\n", dir+"/work/state", dir+"/work/data")
	if err := os.WriteFile(dir+"/config.toml", config, 0o644); err != nil {
		return nil, err
	}
	return interleave(ctx, rounds, p.ways(dir))
}

// ways returns the ways of pulling the image to a directory.
func (p place) ways(dir string) []variant {
	const image = registry + "/" + largeImage
	layout := dir + "/work/layout:it"
	copied := []string{"skopeo", "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", "docker://" + image, "oci:" + layout}
	way := func(name, goal string, steps ...[]string) variant {
		steps = append(steps, []string{"sync", "-f", dir})
		return variant{name: name, goal: goal, run: func(ctx context.Context) (cost, error) { return fresh(ctx, dir+"/work", steps) }}
	}
	all := []variant{
		way("skopeo copy, umoci unpack", "", copied, []string{"umoci", "unpack", "--image", layout, dir + "/work/bundle"}),
		way("berth pull", "≤ 0.7×", []string{"bin/berth", "--config", dir + "/config.toml", "pull", "--quiet", image}),
	}
	if p.raw {
		all = append(all, way("skopeo copy, umoci raw unpack", "", copied, []string{"umoci", "raw", "unpack", "--image", layout, dir + "/work/root"}))
	}
	return all
}

// fresh does the steps with an empty directory, and removes it unmeasured.
func fresh(ctx context.Context, dir string, steps [][]string) (total cost, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return cost{}, err
	}
	defer func() {
		// Flush, so that no measurement pays for the writes of another one.
		err = errors.Join(err, os.RemoveAll(dir))
		_, e := timed(ctx, nil, "sync", "-f", filepath.Dir(dir))
		err = errors.Join(err, e)
	}()
	for _, words := range steps {
		c, err := timed(ctx, nil, words...)
		if err != nil {
			return cost{}, err
		}
		total.wall += c.wall
		total.cpu += c.cpu
	}
	return total, nil
}
