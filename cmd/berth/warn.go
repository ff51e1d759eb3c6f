package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// warner writes what a library logs as lines for people: berth: MESSAGE: ERROR.
type warner struct{ w io.Writer }

func (h warner) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (h warner) Handle(_ context.Context, r slog.Record) error {
	parts := []string{"berth: " + r.Message}
	r.Attrs(func(a slog.Attr) bool {
		parts = append(parts, a.Value.String())
		return true
	})
	_, err := fmt.Fprintln(h.w, oneLine(strings.Join(parts, ": ")))
	return err
}

func (h warner) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h warner) WithGroup(string) slog.Handler { return h }
