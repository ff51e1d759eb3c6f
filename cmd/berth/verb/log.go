package verb

import (
	"context"
	"log/slog"
	"strings"
)

// NewLog returns a logger that prints warnings and errors by [PrintError], with their values: "berth:
// MESSAGE: VALUE".
func NewLog() *slog.Logger { return slog.New(errorPrinter{}) }

type errorPrinter struct{}

func (errorPrinter) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (errorPrinter) Handle(_ context.Context, r slog.Record) error {
	parts := []string{r.Message}
	r.Attrs(func(a slog.Attr) bool {
		parts = append(parts, a.Value.String())
		return true
	})
	PrintError(strings.Join(parts, ": "))
	return nil
}

func (h errorPrinter) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h errorPrinter) WithGroup(string) slog.Handler { return h }
