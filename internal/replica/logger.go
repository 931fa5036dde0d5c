package replica

import (
	"fmt"

	"go.etcd.io/raft/v3"
)

// Logger is the part of [log/slog.Logger] that a replica needs.
type Logger interface {
	Debug(msg string, args ...any)
	Warn(msg string, args ...any)
	Error(msg string, args ...any)
}

// NewLogger adapts l for [Config.Logger]: elections and the like are details of
// level Debug, what raft reports as an error is worth a warning. A nil l is silent.
// Raft's own debug lines are dropped: there are several for each message.
//
// panics supplies what must not return: its Panic panics, as raft.DefaultLogger's
// does. The replica contains that panic, so it never reaches the host.
func NewLogger(l Logger, panics raft.Logger) raft.Logger {
	if l == nil {
		l = silence{}
	}
	return &logger{to: l, panics: panics}
}

type logger struct {
	to     Logger
	panics raft.Logger
}

func (l *logger) Debug(...any)                {}
func (l *logger) Debugf(string, ...any)       {}
func (l *logger) Info(v ...any)               { l.to.Debug("raft: " + fmt.Sprint(v...)) }
func (l *logger) Infof(f string, v ...any)    { l.to.Debug("raft: " + fmt.Sprintf(f, v...)) }
func (l *logger) Warning(v ...any)            { l.to.Debug("raft: " + fmt.Sprint(v...)) }
func (l *logger) Warningf(f string, v ...any) { l.to.Debug("raft: " + fmt.Sprintf(f, v...)) }
func (l *logger) Error(v ...any)              { l.to.Warn("raft: " + fmt.Sprint(v...)) }
func (l *logger) Errorf(f string, v ...any)   { l.to.Warn("raft: " + fmt.Sprintf(f, v...)) }
func (l *logger) Fatal(v ...any)              { l.stop(fmt.Sprint(v...)) }
func (l *logger) Fatalf(f string, v ...any)   { l.stop(fmt.Sprintf(f, v...)) }
func (l *logger) Panic(v ...any)              { l.stop(fmt.Sprint(v...)) }
func (l *logger) Panicf(f string, v ...any)   { l.stop(fmt.Sprintf(f, v...)) }

// stop must not return: raft counts on it. contain catches it at the edge of the
// replica, so that it never reaches the host.
func (l *logger) stop(what string) {
	l.to.Error("raft: a broken invariant ends this replica", "what", what)
	l.panics.Panic(what)
}

type silence struct{}

func (silence) Debug(string, ...any) {}
func (silence) Warn(string, ...any)  {}
func (silence) Error(string, ...any) {}
