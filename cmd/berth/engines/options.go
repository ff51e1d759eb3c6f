package engines

import (
	"path/filepath"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/hook/setup"
)

// SetupOptions returns the options of berth setup. path is the file of the configuration conf: unless it is the
// default one, the engine passes it to berth-runtime.
func SetupOptions(conf berth.Config, host setup.Host, path string) setup.Options {
	o := setup.Options{Config: otherConfig(path), Data: conf.Data, Hook: conf.HookCommand(), CountIndices: conf.Policy.NVIDIAIndices == "count"}
	o.Runtime = filepath.Join(filepath.Dir(o.Hook), "berth-runtime")
	o.Crun = filepath.Base(conf.Runtime) == "crun"
	if conf.Runtime == "" {
		o.Crun = host.Find("crun") != ""
	}
	return o
}

// otherConfig returns the absolute path of a configuration, "" for the default one.
func otherConfig(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil || abs == berth.ConfigPath {
		return ""
	}
	return abs
}
