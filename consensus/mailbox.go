package consensus

import "sync"

// bell wakes one goroutine; any number of rings before it looks are one.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// mailbox collects what many put and one takes, all at once: what arrives while
// the taker is busy is the next batch, without a timer.
type mailbox[T any] struct {
	bell bell // rung at every put
	max  int  // put refuses beyond it; 0 has no bound

	mu    sync.Mutex // guards what follows
	items []T
	spare []T
}

func (m *mailbox[T]) put(items ...T) bool {
	m.mu.Lock()
	if m.max > 0 && len(m.items)+len(items) > m.max {
		m.mu.Unlock()
		return false
	}
	m.items = append(m.items, items...)
	m.mu.Unlock()
	m.bell.ring()
	return true
}

// take empties the mailbox. The slice is the taker's until the next take.
func (m *mailbox[T]) take() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	got := m.items
	if len(got) == 0 {
		return nil
	}
	clear(m.spare)
	m.items, m.spare = m.spare[:0], got
	if cap(m.items) > 1<<15 {
		m.items = nil
	}
	return got
}
