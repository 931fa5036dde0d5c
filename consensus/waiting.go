package consensus

import "sync"

// waiting knows whose commands are in the entries that this voter packed. Answers
// are matched by their place in the entry.
type waiting struct {
	mu      sync.Mutex // guards what follows
	entries map[uint64][]proposal
}

func (w *waiting) add(number uint64, batch []proposal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.entries == nil {
		w.entries = map[uint64][]proposal{}
	}
	w.entries[number] = batch
}

// take returns the waiters of an entry once.
func (w *waiting) take(number uint64) []proposal {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch := w.entries[number]
	delete(w.entries, number)
	return batch
}

// fail tells all waiters that the outcome of their commands is not known.
func (w *waiting) fail() {
	w.mu.Lock()
	all := w.entries
	w.entries = nil
	w.mu.Unlock()
	for _, batch := range all {
		tell(batch, uncertain)
	}
}
