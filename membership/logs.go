package membership

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

// Bounds of what memberlist may log: a flapping network makes it say the same a
// thousand times.
const (
	logQueue  = 256
	logRepeat = 10 // lines a minute of one shape
	logShapes = 64 // shapes told apart in a minute
)

// logs turns the lines of memberlist into records of a slog.Logger. memberlist writes
// with its lock held, so the user's handler runs on a goroutine of its own.
type logs struct {
	to    *slog.Logger
	lines chan line
	lost  atomic.Uint64 // lines that met a full queue since the last told
}

type line struct {
	level slog.Level
	text  string
	attrs []slog.Attr
}

func newLogs(to *slog.Logger) *logs {
	return &logs{to: to, lines: make(chan line, logQueue)}
}

// Write takes one line, "[LEVEL] memberlist: text". It never waits.
func (l *logs) Write(b []byte) (int, error) {
	l.say(parseLine(string(b)))
	return len(b), nil
}

func (l *logs) say(in line) {
	if in.text == "" || !l.to.Enabled(context.Background(), in.level) {
		return
	}
	select {
	case l.lines <- in:
	default:
		l.lost.Add(1)
	}
}

// run passes lines on until ctx ends, at most logRepeat a minute of each shape.
func (l *logs) run(ctx context.Context) {
	var since time.Time
	var seen map[string]int
	for {
		select {
		case in := <-l.lines:
			if now := time.Now(); seen == nil || now.Sub(since) >= time.Minute {
				since, seen = now, map[string]int{}
			}
			l.pass(ctx, in, seen)
		case <-ctx.Done():
			return
		}
	}
}

func (l *logs) pass(ctx context.Context, in line, seen map[string]int) {
	key := shape(in)
	if _, known := seen[key]; !known && len(seen) >= logShapes {
		key = "" // all further shapes share one count
	}
	seen[key]++
	switch n := seen[key]; {
	case n > logRepeat:
		return
	case n == logRepeat:
		in.text += " (further lines like this are held back for a minute)"
	}
	attrs := in.attrs
	if lost := l.lost.Swap(0); lost > 0 {
		attrs = append(attrs, slog.Uint64("lines_lost", lost))
	}
	l.to.LogAttrs(ctx, in.level, in.text, attrs...)
}

// shape is what lines that differ in names and numbers have in common.
func shape(in line) string {
	words := strings.Fields(in.text)
	return in.level.String() + strings.Join(words[:min(2, len(words))], " ")
}

func parseLine(s string) line {
	s = strings.TrimSpace(s)
	l := line{level: slog.LevelInfo, attrs: []slog.Attr{slog.String("from", "memberlist")}}
	if level, rest, ok := strings.Cut(s, "] "); ok && strings.HasPrefix(level, "[") {
		l.level, s = levelOf(level[1:]), rest
	}
	l.text = strings.TrimPrefix(s, "memberlist: ")
	if strings.HasPrefix(l.text, "Binding to public address") {
		l.text = "" // it warns that memberlist does not encrypt; the transport does
	}
	return l
}

// levelOf lowers errors of memberlist to warnings: they speak of a peer or a packet,
// and the protocol goes on.
func levelOf(s string) slog.Level {
	switch s {
	case "DEBUG":
		return slog.LevelDebug
	case "INFO":
		return slog.LevelInfo
	}
	return slog.LevelWarn
}
