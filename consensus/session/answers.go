package session

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// Refused turns an answer that is not OK into an error.
func Refused(what string, res machine.Result) error {
	switch res.Code {
	case machine.NoSession:
		return fmt.Errorf("%s: %w", what, consensus.ErrSessionExpired)
	case machine.Full, machine.WindowFull:
		return fmt.Errorf("%s: %w: the bound is %d", what, consensus.ErrOverloaded, res.N)
	case machine.Invalid:
		return fmt.Errorf("%s: %w: %s", what, consensus.ErrInvalid, res.Body)
	case machine.Stale:
		return fmt.Errorf("%s: %w: its outcome was given up before", what, consensus.ErrUnknown)
	}
	return fmt.Errorf("%s: the cluster answered with code %d: an older version runs there", what, res.Code)
}

// OnRetry gives an unknown outcome what its Retry makes of the answer, which is what
// the call itself would have made of it. Other errors it leaves alone.
func OnRetry(err error, refused func(machine.Result) error) {
	if u, ok := errors.AsType[*consensus.UnknownError](err); ok {
		u.Then(refused)
	}
}

// CheckName refuses what nothing may be called, before anything is sent.
func CheckName(kind, name string) error {
	switch {
	case len(name) == 0 || len(name) > 256:
		return fmt.Errorf("%s %.32q: %w: a name has 1 to 256 bytes, this one %d", kind, name, consensus.ErrInvalid, len(name))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("%s %q: %w: a name is UTF-8 without control characters", kind, name, consensus.ErrInvalid)
	}
	return nil
}
