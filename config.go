package berth

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/spell"
)

// ConfigPath is where the configuration is looked for when nothing else is said.
const ConfigPath = "/etc/berth/config.toml"

// Config is the admin's configuration. The zero value is the built-in default;
// packaging/config.toml explains every key.
type Config struct {
	// State is the directory of what a reboot may forget: snapshot and ledger.
	State string `toml:"state"`
	// Data is the directory of what stays: driver files, images, the event log.
	Data string `toml:"data"`
	// Runtime is the real OCI runtime, a path or a name in PATH. "" means crun,
	// or else runc.
	Runtime string `toml:"runtime"`
	// Berth is the path of the berth command, for programs that have to call it.
	Berth string `toml:"berth"`
	// Hook is the path of berth-hook, for specs that have to name it.
	Hook   string     `toml:"hook"`
	Host   HostConfig `toml:"host"`
	Policy Policy     `toml:"policy"`
	// Guard is the device guard of the whole host.
	Guard GuardConfig `toml:"guard"`
	Run   RunConfig   `toml:"run"`

	// Log gets warnings about the ledger that make no call fail, such as an event log that
	// can't be written. nil discards them. It is no key of the file.
	Log *slog.Logger `toml:"-"`

	path string // that it was read from, "" for the usual one
}

// RunConfig says how berth run runs tasks.
type RunConfig struct {
	// Engine is native, berth itself, or containerd. "" means native.
	Engine string `toml:"engine"`
	// ContainerdAddress is containerd's socket. "" means the usual one.
	ContainerdAddress string `toml:"containerd_address"`
	// HostsDir are directories that configure registries, by hosts.toml or certificates.
	// The first that has a directory for a registry counts. None means those of containerd,
	// docker and podman.
	HostsDir []string `toml:"hosts_dir"`
	// KeepEnded is how long what is left of a task is kept after its end: a duration, or
	// "forever". "" means 720h.
	KeepEnded string `toml:"keep_ended"`
	// KeepCount is how many tasks that have ended are kept at most; 0 means 5000, and less than
	// 0 any number.
	KeepCount int `toml:"keep_count"`
}

// Retention returns how long, and how many, tasks that have ended are kept; 0 means no bound.
func (r RunConfig) Retention() (age time.Duration, count int, err error) {
	age, count = 720*time.Hour, max(r.KeepCount, 0)
	if r.KeepCount == 0 {
		count = 5000
	}
	switch r.KeepEnded {
	case "":
	case "forever":
		age = 0
	default:
		if age, err = time.ParseDuration(r.KeepEnded); err != nil || age <= 0 {
			return 0, 0, fmt.Errorf("run.keep_ended: %q is neither a duration, such as 720h, nor \"forever\"", r.KeepEnded)
		}
	}
	return age, count, nil
}

// HostConfig says where the node's trees and its driver are.
type HostConfig struct {
	DriverRoot string `toml:"driver_root"`
	Dev        string `toml:"dev"`
	Proc       string `toml:"proc"`
	Sys        string `toml:"sys"`
	Cgroup     string `toml:"cgroup"`
	// CDI are the directories of CDI specs, those of higher precedence later. None
	// means /etc/cdi and /var/run/cdi.
	CDI []string `toml:"cdi"`
	// NVML is the library to load, a path or a soname. "" means
	// libnvidia-ml.so.1, first below the driver root.
	NVML string `toml:"nvml"`
}

// LoadConfig reads the configuration at path and fills in the defaults. A missing file at
// ConfigPath is not an error; an unknown key is one. With an error the result has at most
// Runtime, for calls that end containers which that runtime has created.
func LoadConfig(path string) (Config, error) {
	c, err := readConfig(path)
	if err != nil {
		return Config{Runtime: c.Runtime}, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return c, nil
}

// maxConfig is more bytes than anybody writes by hand.
const maxConfig = 1 << 20

func readConfig(path string) (c Config, err error) {
	data, err := smallfile.Read(path, maxConfig)
	if errors.Is(err, fs.ErrNotExist) && path == ConfigPath {
		err = nil
	}
	if err == nil {
		err = c.decode(data)
	}
	if err != nil {
		return c, err
	}
	if path != ConfigPath {
		c.path = path
	}
	c.State = cmp.Or(c.State, "/run/berth")
	c.Data = cmp.Or(c.Data, "/var/lib/berth")
	if c.Host.CDI == nil {
		c.Host.CDI = []string{"/etc/cdi", "/var/run/cdi"}
	}
	return c, c.check()
}

// decode reads TOML. An unknown key is an error, after everything else was decoded.
//
// It takes 0.1 ms for the packaged file in a process that has just started; a wrapper's call
// takes 2 ms.
func (c *Config) decode(data []byte) error {
	err := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(c)
	var unknown *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &unknown):
		line, _ := unknown.Errors[0].Position()
		key := strings.Join(unknown.Errors[0].Key(), ".")
		return fmt.Errorf("line %d: unknown key %q%s", line, key, suggestKey(key))
	case errors.As(err, &bad):
		line, column := bad.Position()
		text := strings.TrimPrefix(bad.Error(), "toml: ")
		text, _, _ = strings.Cut(text, " into struct field") // names types of Go
		if key := strings.Join(bad.Key(), "."); key != "" {
			text = key + ": " + text
		}
		return fmt.Errorf("line %d, column %d: %s", line, column, text)
	}
	return err
}

// suggestKey names the key that an unknown one is most likely meant to be, as the end of a sentence: the
// nearest one, or the one of that name in another section.
func suggestKey(unknown string) string {
	known := listKeys("", reflect.TypeFor[Config]())
	if near := spell.Suggestion(unknown, known...); near != "" {
		return near
	}
	last := func(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }
	var names []string
	for _, key := range known {
		names = append(names, last(key))
	}
	if i := slices.Index(names, spell.Nearest(last(unknown), names)); i >= 0 {
		return " (did you mean " + known[i] + "?)"
	}
	return ""
}

// listKeys returns the keys of the configuration with their sections, and the sections.
func listKeys(section string, t reflect.Type) (keys []string) {
	for _, field := range reflect.VisibleFields(t) {
		name := field.Tag.Get("toml")
		if name == "" || name == "-" {
			continue
		}
		keys = append(keys, section+name)
		if field.Type.Kind() == reflect.Struct {
			keys = append(keys, listKeys(section+name+".", field.Type)...)
		}
	}
	return keys
}

// check refuses values that cannot be used.
func (c Config) check() error {
	dirs := map[string][]string{"state": {c.State}, "data": {c.Data}, "hook": {cmp.Or(c.Hook, "/")}, "host.cdi": c.Host.CDI, "run.hosts_dir": c.Run.HostsDir}
	for _, key := range []string{"state", "data", "hook", "host.cdi", "run.hosts_dir"} {
		for _, dir := range dirs[key] {
			if !filepath.IsAbs(dir) {
				return fmt.Errorf("%s: %q is not an absolute path", key, dir)
			}
		}
	}
	if _, _, err := c.Run.Retention(); err != nil {
		return err
	}
	if err := c.Guard.check(); err != nil {
		return err
	}
	return c.Policy.check()
}

// GPUHost returns the node's trees in the form that package gpu takes.
func (c Config) GPUHost() gpu.Host {
	return gpu.Host{DriverRoot: c.Host.DriverRoot, Dev: c.Host.Dev, Proc: c.Host.Proc, Sys: c.Host.Sys}
}

// SnapshotPath is where the inventory snapshot is kept.
func (c Config) SnapshotPath() string { return filepath.Join(c.State, "inventory.json") }

// SharedFiles is the directory of the files that containers have in common.
func (c Config) SharedFiles() shared.Dir { return shared.InData(c.Data) }

// CDIPath is where the list of other vendors' CDI devices is kept.
func (c Config) CDIPath() string { return filepath.Join(c.State, "cdi.json") }

// Command returns the path of the berth command: the configured one, or the one
// beside the running program, or "berth" for a search in PATH.
func (c Config) Command() string {
	if c.Berth != "" {
		return c.Berth
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "berth")
		if fi, err := os.Stat(beside); err == nil && fi.Mode().IsRegular() {
			return beside
		}
	}
	return "berth"
}

// HookCommand returns the path of berth-hook: the configured one, or the one beside
// the berth command, or the usual one.
func (c Config) HookCommand() string {
	if c.Hook != "" {
		return c.Hook
	}
	if berth := c.Command(); filepath.IsAbs(berth) {
		return filepath.Join(filepath.Dir(berth), "berth-hook")
	}
	return "/usr/bin/berth-hook"
}
