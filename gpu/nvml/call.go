package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// caller calls the library's functions, each with a time limit.
type caller struct {
	ctx     context.Context
	timeout time.Duration
	has     func(function string) bool
	hung    *atomic.Bool // set when a call didn't return in time
}

// withLongerLimit returns a caller for calls that may take longer: loading, and the first call for
// a GPU.
func (c caller) withLongerLimit() caller {
	c.timeout *= 4
	return c
}

// callError is a failed call, with the library's description.
type callError struct {
	function string
	ret      nvml.Return
	words    string
}

func (e *callError) Error() string { return e.function + ": " + e.words }

// checkReturn returns an error unless ret is SUCCESS.
func checkReturn(function string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &callError{function: function, ret: ret, words: nvml.ErrorString(ret)}
}

// isReturn reports whether err is a callError with one of these codes.
func isReturn(err error, codes ...nvml.Return) bool {
	var e *callError
	if !errors.As(err, &e) {
		return false
	}
	for _, code := range codes {
		if e.ret == code {
			return true
		}
	}
	return false
}

// isUnsupported reports whether err means that the GPU or the library lacks the function or the
// feature.
func isUnsupported(err error) bool {
	return isReturn(err, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND)
}

// callFunction runs one function of the library. A function that the library doesn't
// have fails with ERROR_FUNCTION_NOT_FOUND; calling it would end the process.
func callFunction[T any](c caller, function string, f func() (T, nvml.Return)) (T, error) {
	if !c.has(function) {
		var zero T
		return zero, &callError{function: function, ret: nvml.ERROR_FUNCTION_NOT_FOUND, words: "not in this library"}
	}
	return runWithLimit(c, function, func() (T, error) {
		value, ret := f()
		return value, checkReturn(function, ret)
	})
}

// runWithLimit runs f on a goroutine of its own and abandons it after the timeout. f must return
// data only by its results, because it may still run afterwards.
func runWithLimit[T any](c caller, what string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	var zero T
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
		c.hung.Store(true)
		return zero, fmt.Errorf("NVML call %s did not return within %s", what, c.timeout)
	case <-c.ctx.Done():
		c.hung.Store(true)
		return zero, fmt.Errorf("%s: %w", what, c.ctx.Err())
	}
}
