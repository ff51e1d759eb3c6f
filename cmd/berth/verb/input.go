package verb

import (
	"context"
	"os"
)

// Input is a file that a flag names. It may be a pipe whose other end does nothing: opening and reading it end with the context.
type Input struct {
	*os.File
	ctx  context.Context
	stop func() bool
}

// OpenInput opens a file for reading. After the end of ctx the errors of OpenInput and Read are its cause.
func OpenInput(ctx context.Context, path string) (Input, error) {
	type opened struct {
		file *os.File
		err  error
	}
	result := make(chan opened, 1)
	go func() { // open waits until somebody opens the other end of a named pipe
		file, err := os.Open(path)
		result <- opened{file, err}
	}()
	select {
	case <-ctx.Done():
		return Input{}, context.Cause(ctx) // the process ends now, and the goroutine with it
	case o := <-result:
		if o.err != nil {
			return Input{}, o.err
		}
		return Input{o.file, ctx, context.AfterFunc(ctx, func() { _ = o.file.Close() })}, nil
	}
}

// Read is [os.File.Read].
func (i Input) Read(b []byte) (int, error) {
	n, err := i.File.Read(b)
	if err != nil && i.ctx.Err() != nil {
		err = context.Cause(i.ctx)
	}
	return n, err
}

// Close is [os.File.Close].
func (i Input) Close() error {
	if !i.stop() { // it is closed already
		return context.Cause(i.ctx)
	}
	return i.File.Close()
}
