package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const aboutPull = "%s, from a registry on this machine's loopback to a root file system: by skopeo into an OCI layout that umoci unpacks, and by berth into an empty store. %s berth compares each layer with its digests, compressed and unpacked. umoci's unpack also writes a list of all files with their digests, which its raw unpack doesn't. The registry's share of the processors is in the times of all. In a host of Debian's packages: %s, %s."

// place is where images are unpacked to.
type place struct{ name, dir, about string }

func places() []place {
	return []place{
		{"in memory", os.TempDir(), "All is written to memory (tmpfs), where nothing has to be synced."},
		{"on disk", built, "All is written to a disk and is on it in the end: berth syncs by itself, and after umoci comes `sync -f`, in its time."},
	}
}

// pulls compares ways of getting a large image ready.
func pulls(ctx context.Context, o options) ([]section, error) {
	if err := pushLarge(ctx); err != nil {
		return nil, err
	}
	var all []section
	for _, p := range places() {
		results, err := p.measure(ctx, max(1, o.rounds/10))
		if err != nil {
			return nil, err
		}
		about := fmt.Sprintf(aboutPull, aboutLarge(), p.about, firstLine("skopeo", "--version"), firstLine("umoci", "--version"))
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
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "state = %q\ndata = %q\n", dir+"/work/state", dir+"/work/data"), 0o644); err != nil {
		return nil, err
	}
	image := registry + "/" + largeImage
	way := func(name, goal string, steps ...[]string) variant {
		return variant{name: name, goal: goal, run: func(ctx context.Context) (cost, error) { return fresh(ctx, filepath.Join(dir, "work"), steps) }}
	}
	copied := []string{"skopeo", "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", "docker://" + image, "oci:" + dir + "/work/layout:it"}
	synced := []string{"sync", "-f", dir}
	return interleave(ctx, rounds, []variant{
		way("skopeo copy, umoci unpack", "", copied, []string{"umoci", "unpack", "--image", dir + "/work/layout:it", dir + "/work/bundle"}, synced),
		way("skopeo copy, umoci raw unpack", "", copied, []string{"umoci", "raw", "unpack", "--image", dir + "/work/layout:it", dir + "/work/root"}, synced),
		way("berth pull", "≤ 0.7×", []string{"bin/berth", "--config", config, "pull", "--quiet", image}, synced),
	})
}

// fresh does the steps with an empty directory, and removes it unmeasured.
func fresh(ctx context.Context, dir string, steps [][]string) (total cost, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return cost{}, err
	}
	defer func() {
		// Nobody shall pay for what others leave to be written.
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
