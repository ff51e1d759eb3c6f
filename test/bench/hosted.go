package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// registry is the address of the host's registry.
const registry = "127.0.0.1:5000"

// measureHost measures inside the host.
func measureHost(ctx context.Context, o options) error {
	ready := readyHost
	if o.users {
		ready = readyUsers
	}
	if err := ready(ctx); err != nil {
		return err
	}
	var report strings.Builder
	out := io.MultiWriter(os.Stdout, &report)
	for _, t := range hostTopics() {
		if !strings.HasPrefix(t.name, o.only) || t.users != o.users {
			continue
		}
		sections, err := t.measure(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		for _, s := range sections {
			if err := s.print(out); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(o.write, []byte(report.String()), 0o644)
}

// readyHost starts engines and a registry, and prepares berth.
func readyHost(ctx context.Context) error {
	wrapper, err := filepath.Abs("bin/berth-runtime")
	if err != nil {
		return err
	}
	// Overlays can't be made on the host's root, unlike a server's.
	for _, dir := range []string{"/var/lib/docker", "/var/lib/containers", "/var/lib/containerd"} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=711"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
		}
	}
	config, err := registryConfig()
	if err != nil {
		return err
	}
	daemons := [][]string{
		{"containerd"},
		{"dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none", "--add-runtime", "berth=" + wrapper},
		{"docker-registry", "serve", config},
	}
	for _, words := range daemons {
		if err := exec.Command(words[0], words[1:]...).Start(); err != nil { // the daemon ends with the host
			return err
		}
	}
	if err := configure("crun"); err != nil {
		return err
	}
	const waits = `for i in $(seq 600); do docker info >/dev/null 2>&1 && busybox wget -qO /dev/null "http://$0/v2/" && exit; sleep 0.1; done; exit 1`
	for _, words := range [][]string{
		{"bin/berth", "discover", "--quiet"},
		{"bin/berth", "cdi", "generate"},
		{"sh", "-c", waits, registry},
	} {
		if _, err := timed(ctx, nil, words...); err != nil {
			return err
		}
	}
	return nil
}

// registryConfig has the registry keep its images below .cache: the large one is made
// once.
func registryConfig() (string, error) {
	dir, err := filepath.Abs(filepath.Join(built, "registry"))
	if err != nil {
		return "", err
	}
	const path = "/tmp/registry.yml"
	text := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\n", dir, registry)
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// push copies an image of a layout to the registry.
func push(ctx context.Context, layout, name string) error {
	_, err := timed(ctx, nil, "skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "oci:"+layout, "docker://"+registry+"/"+name)
	return err
}
