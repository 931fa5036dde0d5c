package membership

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// Rhythm of looking for others. The loop never ends: gossip does not speak to the
// dead, so two sides of a split that have given each other up meet only through it,
// and so do islands that were born apart.
const (
	rejoinEvery = 10 * time.Second // in company: one lost member and one unknown seed
	retryMost   = 15 * time.Second // alone: the seeds, at growing intervals
	maxJoins    = 4                // at a time
	maxTries    = 16               // seeds in one round
)

// seeker finds other nodes, at the start and for ever after.
type seeker struct {
	list    *List
	sources []*source
	rng     *rand.Rand
	pace    tuning
}

// run looks for others until ctx ends. It calls first after the first round.
func (s *seeker) run(ctx context.Context, first func()) {
	retry := s.pace.firstRetry
	for round := 0; ctx.Err() == nil; round++ {
		s.round(ctx, retry)
		if round == 0 {
			first()
		}
		s.list.sweep(s.pace.missed)
		wait := s.jitter(rejoinEvery, 0.2)
		if s.list.alone() {
			wait = s.jitter(retry, 0.25)
			retry = min(2*retry, retryMost)
		} else {
			retry = s.pace.firstRetry
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// round asks all sources and joins: when alone, what they name; in company, one
// address that is no member's. Either way it calls on one failed member.
func (s *seeker) round(ctx context.Context, retry time.Duration) {
	found, err := askAll(ctx, s.sources, s.list.self.Addr)
	if err != nil && ctx.Err() == nil {
		s.list.logs.say(line{level: slog.LevelWarn, text: err.Error()})
	}
	s.list.setSeeds(found)
	alone, tries := s.list.alone(), 1
	patience := exchangeTimeout
	if alone {
		tries, patience = maxTries, min(max(s.pace.patience, retry), exchangeTimeout)
	}
	targets := s.strangers(found, tries)
	if lost, some := s.list.lost(); some {
		targets = append(targets, lost)
	}
	s.list.port.patient.Store(int64(patience))
	s.join(ctx, targets)
	if alone && s.list.alone() && retry >= retryMost && len(targets) > 0 {
		s.list.logs.say(line{level: slog.LevelWarn, text: fmt.Sprintf("no seed answers, going on to ask: tried %v", targets)})
	}
}

// strangers picks at most n addresses of found that no member has.
func (s *seeker) strangers(found []netip.AddrPort, n int) (out []netip.AddrPort) {
	for _, i := range s.rng.Perm(len(found)) {
		if len(out) < n && !s.list.at(found[i]) {
			out = append(out, found[i])
		}
	}
	return out
}

// join exchanges states with the targets, maxJoins at a time. One that has become a
// member in the meantime, which is what the first success does to most, is skipped.
func (s *seeker) join(ctx context.Context, targets []netip.AddrPort) {
	next := make(chan netip.AddrPort)
	var wg sync.WaitGroup
	for range min(maxJoins, len(targets)) {
		wg.Go(func() {
			for a := range next {
				if !s.list.at(a) {
					s.list.ml.Join([]string{a.String()}) // memberlist logs why one fails
				}
			}
		})
	}
	for _, a := range targets {
		if ctx.Err() == nil {
			next <- a
		}
	}
	close(next)
	wg.Wait()
}

// jitter spreads d by the given share to either side, so that nodes started together
// do not call together.
func (s *seeker) jitter(d time.Duration, share float64) time.Duration {
	return time.Duration(float64(d) * (1 + share*(2*s.rng.Float64()-1)))
}
