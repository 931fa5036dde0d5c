package workqueue

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"
	"unicode"
	"unicode/utf8"
)

// Mode says what a queue guarantees. All nodes must open a queue in the same mode.
type Mode uint8

const (
	// Durable tasks are on the disks of a majority of the voters before Submit
	// returns, and run at least once whatever fails.
	Durable Mode = iota
	// Volatile tasks live as long as the node that they were submitted on, and run
	// at least once while it lives. They cost no consensus.
	Volatile
)

// String returns "durable" or "volatile".
func (m Mode) String() string {
	switch m {
	case Durable:
		return "durable"
	case Volatile:
		return "volatile"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Config is how a queue works. The zero value is a durable queue with the defaults.
// The first Open of a name on a node decides for that node; MaxReady,
// Concurrency and Retention of durable queues are replicated, and the node that used the queue last decides.
type Config struct {
	Mode        Mode                                       // Durable
	MaxAttempts int                                        // failed attempts after which a task is dead; default 25
	Backoff     func(attempt int, err error) time.Duration // wait after failed attempt 1, 2, ...; default full jitter up to 1 s, 2 s, 4 s ... 15 min
	Lease       time.Duration                              // durable: how long claims outlive a node that is not heard of; default 10 s
	Timeout     time.Duration                              // the handler's ctx ends after it; default none
	MaxReady    int                                        // Submit beyond so many unfinished tasks is ErrFull; durable: in the cluster, volatile: submitted here; default 1 000 000
	Concurrency int                                        // durable: most tasks that nodes have claimed at once in the cluster; default no bound
	Retention   time.Duration                              // finished tasks and their results are kept, at most 100 000 of them; default 1 h
	Steal       Steal                                      // volatile: how this node takes tasks from others
}

// Steal says how a node takes tasks of a volatile queue from other nodes.
type Steal struct {
	Off   bool // this node's workers run only what was submitted here
	Batch int  // most tasks taken at once; default and limit 256
}

// Workers says how many handlers a Handle call runs at once.
type Workers struct {
	N     int           // default GOMAXPROCS
	Drain time.Duration // after ctx ended, running handlers have this long before their ctx ends; default 30 s
}

const (
	maxName    = 256
	maxPayload = 1 << 20
	maxResult  = 64 << 10
	maxText    = 4 << 10
	maxDone    = 100_000
	maxWorkers = 1 << 16
	stealBatch = 256
	stealBytes = 256 << 10
	maxBackoff = 15 * time.Minute
)

func (c Config) withDefaults() Config {
	def(&c.MaxAttempts, 25)
	def(&c.Lease, 10*time.Second)
	def(&c.MaxReady, 1_000_000)
	def(&c.Retention, time.Hour)
	def(&c.Steal.Batch, stealBatch)
	c.Steal.Batch = min(c.Steal.Batch, stealBatch)
	if c.Backoff == nil {
		c.Backoff = fullJitter
	}
	return c
}

func def[N int | time.Duration](v *N, d N) {
	if *v == 0 {
		*v = d
	}
}

func (c Config) check(queue string) error {
	bad := func(field, reason string) error { return &ConfigError{Queue: queue, Field: field, Reason: reason} }
	switch {
	case c.Mode > Volatile:
		return bad("Mode", "is neither Durable nor Volatile")
	case c.MaxAttempts < 0:
		return bad("MaxAttempts", "is negative")
	case c.Lease < 0:
		return bad("Lease", "is negative")
	case c.Timeout < 0:
		return bad("Timeout", "is negative")
	case c.MaxReady < 0:
		return bad("MaxReady", "is negative")
	case c.Concurrency < 0:
		return bad("Concurrency", "is negative")
	case c.Concurrency > 0 && c.Mode == Volatile:
		return bad("Concurrency", "is set: only the ledger of a durable queue can keep it")
	case c.Retention < 0:
		return bad("Retention", "is negative")
	case c.Steal.Batch < 0:
		return bad("Steal.Batch", "is negative")
	}
	return nil
}

func (w Workers) withDefaults() Workers {
	def(&w.N, runtime.GOMAXPROCS(0))
	def(&w.Drain, 30*time.Second)
	return w
}

func (w Workers) check(queue string) error {
	if w.N < 1 || w.N > maxWorkers {
		return &ConfigError{Queue: queue, Field: "Workers.N", Reason: fmt.Sprintf("is %d, not 1 to %d", w.N, maxWorkers)}
	}
	if w.Drain < 0 {
		return &ConfigError{Queue: queue, Field: "Workers.Drain", Reason: "is negative"}
	}
	return nil
}

// fullJitter spreads retries over the whole interval: tasks that failed together
// must not come back together (Brooker, "Exponential Backoff And Jitter", 2015).
func fullJitter(attempt int, _ error) time.Duration {
	limit := min(time.Second<<min(max(attempt-1, 0), 20), maxBackoff)
	return time.Duration(rand.Int64N(int64(limit)))
}

// checkText applies the rules for names of queues, unique keys and order keys.
func checkText(what, s string) error {
	switch {
	case s == "":
		return &NameError{What: what, Name: s, Reason: "is empty"}
	case len(s) > maxName:
		return &NameError{What: what, Name: s[:maxName], Reason: fmt.Sprintf("has %d bytes, at most %d are allowed", len(s), maxName)}
	case !utf8.ValidString(s):
		return &NameError{What: what, Name: s, Reason: "is not UTF-8"}
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return &NameError{What: what, Name: s, Reason: "has control characters"}
		}
	}
	return nil
}
