package probe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
)

// Serve is the child's half: it writes the stream to w, a failure of the stream
// included. The error says that w couldn't be written.
func Serve(ctx context.Context, w io.Writer, s Stream) error {
	out := json.NewEncoder(w)
	send := func(m Message) error { return out.Encode(m) }
	if err := s.Stream(ctx, send); err != nil {
		return send(Message{Failure: newFailure(err)})
	}
	return send(Message{Done: true})
}

func newFailure(err error) *Failure {
	f := &Failure{Text: err.Error()}
	errors.As(err, &f.NoDriver)
	return f
}

func (f *Failure) asError() error {
	if f.NoDriver != nil {
		return f.NoDriver
	}
	return errors.New(f.Text)
}
