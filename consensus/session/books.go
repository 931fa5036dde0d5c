package session

import "slices"

// The books say which commands of a session are settled: the cluster keeps the answer
// of every other one, so that a copy of it is not applied twice (L4).

// lagging is how far the floor may fall behind before commands name the settled
// sequences above it one by one. Below that the floor alone says enough.
const lagging = 512

// acknowledge says which answers the cluster may forget: all below floor, and some above it.
func (s *Session) acknowledge(seq uint64) (floor uint64, done []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq-s.floor < lagging {
		return s.floor, nil
	}
	s.untold = slices.DeleteFunc(s.untold, func(q uint64) bool { return q < s.floor })
	return s.floor, slices.Clone(s.untold[:min(len(s.untold), 32)]) // more go with the next commands
}

func (s *Session) told(done []uint64, answered bool) {
	if !answered || len(done) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untold = slices.DeleteFunc(s.untold, func(q uint64) bool { return slices.Contains(done, q) })
}

// settle marks a command as answered or given up: a late copy of it will be refused.
func (s *Session) settle(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unknown = slices.DeleteFunc(s.unknown, func(q uint64) bool { return q == seq })
	s.settleLocked(seq)
	for len(s.unknown) > 0 && s.seq-s.unknown[0] > memory { // else settled would grow without end
		s.giveUp()
	}
}

func (s *Session) settleLocked(seq uint64) {
	if seq < s.floor {
		return
	}
	s.settled[seq] = struct{}{}
	if seq > s.floor {
		s.untold = append(s.untold, seq)
	}
	for {
		if _, ok := s.settled[s.floor]; !ok {
			break
		}
		delete(s.settled, s.floor)
		s.floor++
	}
	if len(s.settled) == 0 {
		s.untold = s.untold[:0]
	}
}

const (
	retryable = 256     // unknown outcomes of a session that can still be asked for
	memory    = 1 << 16 // commands after which an unknown outcome cannot be asked for any more
)

// mayRetry keeps an unknown outcome open for Retry; the oldest beyond the bound is given up.
func (s *Session) mayRetry(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq >= s.floor && !slices.Contains(s.unknown, seq) {
		s.unknown = append(s.unknown, seq)
	}
	if len(s.unknown) > retryable {
		s.giveUp()
	}
}

// giveUp gives the oldest unknown outcome up. s.mu is held.
func (s *Session) giveUp() {
	oldest := s.unknown[0]
	s.unknown = slices.Delete(s.unknown, 0, 1)
	s.settleLocked(oldest)
}
