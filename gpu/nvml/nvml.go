// Package nvml reads a node's GPUs with NVIDIA's management library. It is the only package that
// uses cgo, and only cmd/berth-nvml and tests import it. Container starts read the snapshot instead.
//
// The library is loaded at run time and may be older or newer than go-nvml's header: every function
// is looked up before it is called, every return code is checked, and every call may hang. "Not
// supported" has a meaning where this package gives it one (MIG mode off); any other failure makes
// the GPU lost, in the library's own words.
//
// Nothing is changed on a GPU, and CUDA is not initialised.
package nvml

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/probe"
)

// Source is a [gpu.Source] and a [probe.Stream].
type Source struct {
	// Library is the path or name of the library; "" means libnvidia-ml.so.1,
	// where the dynamic loader finds it.
	Library string
	// Timeout is how long one call may take; 0 means 5 seconds. Loading the
	// library and the first call for a GPU, which can wake it up, may take four
	// times as long.
	Timeout time.Duration
}

// Read reports the node. A call that hangs leaves its thread behind.
func (s Source) Read(ctx context.Context) (gpu.Report, error) { return probe.Collect(ctx, s) }

// Stream reports the node GPU by GPU; see [probe.Stream].
func (s Source) Stream(ctx context.Context, send func(probe.Message) error) error {
	l := s.newLibrary(ctx)
	if err := l.open(); err != nil {
		return err
	}
	defer l.close()
	start, err := l.readStart()
	if err != nil {
		return err
	}
	return l.streamReadings(start, send)
}

func (s Source) newLibrary(ctx context.Context) *library {
	l := &library{caller: caller{ctx: ctx, timeout: s.Timeout, hung: new(atomic.Bool)}, name: s.Library}
	if l.name == "" {
		l.name = soname
	}
	if l.timeout == 0 {
		l.timeout = 5 * time.Second
	}
	l.nvml = nvml.New(nvml.WithLibraryPath(l.name))
	l.has = l.hasFunction
	return l
}

// library is NVML, loaded and initialised.
type library struct {
	caller
	name string
	nvml nvml.Interface
}

// open loads and initialises the library.
func (l *library) open() error {
	_, err := runWithLimit(l.withLongerLimit(), "load "+l.name, func() (struct{}, error) {
		return struct{}{}, loadLibrary(l.name)
	})
	if err != nil {
		return err
	}
	// callFunction can't be used here: it looks functions up, which works only after init.
	ret, err := runWithLimit(l.withLongerLimit(), "nvmlInit_v2", func() (nvml.Return, error) { return l.nvml.Init(), nil })
	if err != nil {
		return err
	}
	switch err := checkReturn("nvmlInit_v2", ret); {
	case ret == nvml.ERROR_DRIVER_NOT_LOADED:
		return &gpu.NoDriverError{Library: l.name, Reason: err.Error()}
	case err != nil:
		return fmt.Errorf("initialise %s: %w", l.name, err)
	}
	return nil
}

// loadLibrary opens the library before go-nvml does, because go-nvml doesn't return the dynamic
// loader's error. It also checks that the functions exist which go-nvml calls without a lookup.
func loadLibrary(name string) error {
	library := dl.New(name, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := library.Open(); err != nil {
		reason := strings.TrimPrefix(err.Error(), name+": ")
		if strings.HasPrefix(reason, "cannot open shared object file") {
			return &gpu.NoDriverError{Library: name, Reason: reason}
		}
		return fmt.Errorf("load %s: %s", name, reason)
	}
	for _, function := range []string{"nvmlInit_v2", "nvmlErrorString"} {
		if library.Lookup(function) != nil {
			return fmt.Errorf("load %s: it isn't NVML, or one before 2013: it has no %s", name, function)
		}
	}
	return nil
}

// hasFunction reports whether the library has a function, under this name or that of a later
// version of it.
func (l *library) hasFunction(name string) bool {
	for _, version := range []string{"", "_v2", "_v3"} {
		if l.nvml.Extensions().LookupSymbol(name+version) == nil {
			return true
		}
	}
	return false
}

// close shuts the library down, unless a call still hangs in it. Errors are ignored, because they
// don't affect the data that was read.
func (l *library) close() {
	if !l.hung.Load() {
		_, _ = callFunction(l.caller, "nvmlShutdown", func() (struct{}, nvml.Return) { return struct{}{}, l.nvml.Shutdown() })
	}
}

func (l *library) readStart() (s probe.Start, err error) {
	if s.Driver.Version, err = callFunction(l.caller, "nvmlSystemGetDriverVersion", l.nvml.SystemGetDriverVersion); err != nil {
		return s, err
	}
	cuda, err := callFunction(l.caller, "nvmlSystemGetCudaDriverVersion", l.nvml.SystemGetCudaDriverVersion)
	if err != nil {
		return s, err
	}
	s.Driver.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	s.GPUs, err = callFunction(l.caller, "nvmlDeviceGetCount", l.nvml.DeviceGetCount)
	return s, err
}

// streamReadings reads all GPUs at once and sends them as they come.
func (l *library) streamReadings(start probe.Start, send func(probe.Message) error) error {
	if err := send(probe.Message{Start: &start}); err != nil {
		return err
	}
	readings := make(chan probe.Reading, start.GPUs) // buffered for all GPUs, so that no goroutine blocks after an early return
	for i := range start.GPUs {
		go func() { readings <- l.readGPU(i) }()
	}
	for range start.GPUs {
		r := <-readings
		if err := l.ctx.Err(); err != nil {
			return fmt.Errorf("read GPUs: %w", err)
		}
		if err := send(probe.Message{GPU: &r}); err != nil {
			return err
		}
	}
	return nil
}
