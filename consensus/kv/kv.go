// Package kv is a small ordered store shared by the cluster: configuration,
// registration, coordination. Values are opaque bytes.
//
// Every change has a revision of its own, which grows. A transaction changes
// several keys in one step, under conditions on their revisions and on holds.
//
// # Concurrency
//
// Everything here may be called from any goroutine.
//
// # Failure
//
// Reads are linearizable: they wait for a quorum until their ctx ends
// ([consensus.ErrNoQuorum]). A write whose outcome is unknown when its ctx ends
// returns a [*consensus.UnknownError].
package kv

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/machine"
)

// Errors to test for.
var (
	ErrNotFound  = errors.New("the key does not exist")
	ErrConflict  = errors.New("the key is not as the call demands")
	ErrCompacted = errors.New("the history that was asked for is forgotten")
)

// Limits, checked before anything is sent.
const (
	MaxKey   = 1 << 10 // bytes of a key, prefix included
	MaxValue = 1 << 20 // bytes of a value, and of all values of a transaction
	MaxOps   = 128     // operations of a transaction, and likewise its conditions (keys read among them) and guards
)

// Rev is a revision. Each change has its own, and later ones are larger.
type Rev uint64

// Entry is a key as it stands.
type Entry struct {
	Key          string // without the prefix of the KV
	Value        []byte
	Rev, Created Rev
}

// CompactedError says from where history is still there. It Is [ErrCompacted].
type CompactedError struct{ Oldest Rev }

// Error says what to do.
func (e *CompactedError) Error() string {
	return fmt.Sprintf("history before revision %d is forgotten: watch anew without From", e.Oldest)
}

// Is makes the error an ErrCompacted.
func (e *CompactedError) Is(target error) bool { return target == ErrCompacted }

// KV is the store below one prefix, which keys that go in and out do not carry.
type KV struct {
	keeper *session.Keeper
	prefix string
}

// New returns the store below prefix. Nothing is sent until it is used.
func New(k *session.Keeper, prefix string) *KV { return &KV{keeper: k, prefix: prefix} }

// PutOption is an option of Put, Delete, Append and of their forms in a Tx.
type PutOption func(*write)

type write struct {
	bad    error // an option that cannot work
	op     machine.KeyOp
	check  *machine.Check
	guards []machine.Guard
}

// IfRev lets the write happen only if the key's revision is r.
func IfRev(r Rev) PutOption {
	return func(w *write) { w.check = &machine.Check{Key: w.op.Key, Rev: machine.Rev(r)} }
}

// IfAbsent lets the write happen only if the key does not exist.
func IfAbsent() PutOption { return IfRev(0) }

// Ephemeral deletes the key when s ends.
func Ephemeral(s *session.Session) PutOption {
	return func(w *write) {
		if s == nil {
			w.bad = fmt.Errorf("%w: Ephemeral without a session", consensus.ErrInvalid)
			return
		}
		w.op.Session = machine.SessionID(s.ID())
	}
}

// TTL deletes the key after d of cluster time, which stands still while nobody leads.
func TTL(d time.Duration) PutOption {
	return func(w *write) { w.op.TTL = uint64(max(d, 1)) }
}

// Guard lets the write happen only while the hold or leadership is current, which
// is checked in the same step: no clock is involved. Else it is [lock.ErrStaleToken].
func Guard(g consensus.Guarded) PutOption {
	return func(w *write) {
		if g == nil {
			w.bad = fmt.Errorf("%w: Guard without a hold", consensus.ErrInvalid)
			return
		}
		w.guards = append(w.guards, machine.Guard(g.Guard()))
	}
}

func (k *KV) write(kind machine.KeyOpKind, key string, val []byte, opts []PutOption) write {
	w := write{op: machine.KeyOp{Kind: kind, Key: k.prefix + key, Value: val}}
	for _, o := range opts {
		o(&w)
	}
	return w
}

// Put sets a key and returns its new revision. Errors: [ErrConflict] from IfRev and
// IfAbsent, [lock.ErrStaleToken] from Guard, [consensus.ErrSessionExpired] from
// Ephemeral or if the node's own session ended meanwhile, [consensus.ErrInvalid] beyond
// the limits, [consensus.ErrNoQuorum] and [consensus.ErrUnknown] when ctx ends first.
func (k *KV) Put(ctx context.Context, key string, val []byte, opts ...PutOption) (Rev, error) {
	_, rev, err := k.commit(ctx, fmt.Sprintf("put %q", key), nil, k.write(machine.KeyPut, key, val, opts))
	return rev, err
}

// Delete removes a key and returns the revision of that; 0 if there was nothing to
// remove. With IfRev a missing key is [ErrNotFound].
func (k *KV) Delete(ctx context.Context, key string, opts ...PutOption) (Rev, error) {
	w := k.write(machine.KeyDelete, key, nil, opts)
	done, rev, err := k.commit(ctx, fmt.Sprintf("delete %q", key), nil, w)
	if err == nil && done[0].Rev == 0 {
		return 0, nil
	}
	return rev, err
}

// Append puts val at the next key of a directory, which is dir followed by a
// number of 20 digits that grows and is never used again.
func (k *KV) Append(ctx context.Context, dir string, val []byte, opts ...PutOption) (Entry, error) {
	done, rev, err := k.commit(ctx, fmt.Sprintf("append to %q", dir), nil, k.write(machine.KeyAppend, dir, val, opts))
	if err != nil {
		return Entry{}, err
	}
	return Entry{Key: k.relative(done[0].Key), Value: val, Rev: rev, Created: rev}, nil
}

// Swap sets a key and returns what it was before: the zero Entry if it did not exist.
func (k *KV) Swap(ctx context.Context, key string, val []byte) (old Entry, err error) {
	w := k.write(machine.KeyPut, key, val, nil)
	w.op.WantOld = true
	done, _, err := k.commit(ctx, fmt.Sprintf("swap %q", key), nil, w)
	if err == nil && done[0].HadOld {
		old = k.entry(done[0].Old)
	}
	return old, err
}

// conflict is the ErrConflict of one condition.
type conflict struct {
	what  string
	place int // of the condition in the transaction
	rev   Rev // present revision of its key; 0 if it does not exist
}

func (e *conflict) Error() string {
	if e.rev == 0 {
		return fmt.Sprintf("%s: %v: it does not exist", e.what, ErrConflict)
	}
	return fmt.Sprintf("%s: %v: its revision is %d", e.what, ErrConflict, e.rev)
}

func (e *conflict) Is(target error) bool { return target == ErrConflict }

// commit sends the writes as one transaction, which depends on the reads too.
func (k *KV) commit(ctx context.Context, what string, reads []machine.Check, ws ...write) (done []machine.KeyDone, rev Rev, err error) {
	txn, err := build(reads, ws)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", what, err)
	}
	s, err := k.keeper.Default(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", what, err)
	}
	missing := ErrConflict
	if len(reads) == 0 && ws[0].op.Kind == machine.KeyDelete {
		missing = ErrNotFound
	}
	refused := func(res machine.Result) error { return refusal(what, missing, res) }
	res, err := s.Do(ctx, machine.OpTxn, txn)
	session.OnRetry(err, refused)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", what, err)
	}
	if err := refused(res); err != nil {
		return nil, 0, err
	}
	var ans machine.TxnAnswer
	if err := machine.Decode(res.Body, &ans); err != nil || len(ans.Done) != len(ws) {
		return nil, 0, fmt.Errorf("%s: the answer has %d results for %d writes: %w", what, len(ans.Done), len(ws), errors.Join(err, consensus.ErrUnknown))
	}
	return ans.Done, Rev(res.Rev), nil
}

// refusal is the error of a transaction that changed nothing; nil if it did what it
// was to do. missing is what a condition on a key that does not exist is refused with.
func refusal(what string, missing error, res machine.Result) error {
	switch {
	case res.Code == machine.OK:
		return nil
	case res.Code == machine.Conflict && res.Rev == 0 && missing != ErrConflict:
		return fmt.Errorf("%s: %w", what, missing)
	case res.Code == machine.Conflict:
		return &conflict{what: what, place: int(res.N), rev: Rev(res.Rev)}
	case res.Code == machine.StaleToken:
		return fmt.Errorf("%s: %w", what, lock.ErrStaleToken)
	}
	return session.Refused(what, res)
}

// build makes one transaction of the writes and refuses what is beyond the limits.
func build(reads []machine.Check, ws []write) (*machine.Txn, error) {
	txn, size := &machine.Txn{Checks: reads}, 0
	for _, w := range ws {
		longest := MaxKey
		if w.op.Kind == machine.KeyAppend {
			longest -= len(fmt.Sprintf("%020d", 0))
		}
		switch n := len(w.op.Key); {
		case w.bad != nil:
			return nil, w.bad
		case n == 0 || n > longest:
			return nil, fmt.Errorf("%w: a key has 1 to %d bytes, this one %d", consensus.ErrInvalid, longest, n)
		case len(w.op.Value) > MaxValue:
			return nil, fmt.Errorf("%w: a value has at most %d bytes, this one %d", consensus.ErrInvalid, MaxValue, len(w.op.Value))
		}
		size += len(w.op.Value)
		if w.check != nil {
			txn.Checks = append(txn.Checks, *w.check)
		}
		txn.Guards = append(txn.Guards, w.guards...)
		txn.Ops = append(txn.Ops, w.op)
	}
	if most := max(len(txn.Ops), len(txn.Checks), len(txn.Guards)); most > MaxOps || size > MaxValue {
		return nil, fmt.Errorf("%w: a transaction has at most %d operations, conditions and guards each and %d bytes of values, this one %d, %d, %d and %d",
			consensus.ErrInvalid, MaxOps, MaxValue, len(txn.Ops), len(txn.Checks), len(txn.Guards), size)
	}
	return txn, nil
}

// Get reads a key, linearizably. [ErrNotFound] if it does not exist.
func (k *KV) Get(ctx context.Context, key string) (Entry, error) {
	res, err := k.keeper.Query(ctx, &machine.Query{Kind: machine.QueryKey, Name: k.prefix + key})
	if err != nil {
		return Entry{}, fmt.Errorf("get %q: %w", key, err)
	}
	var e machine.KeyEntry
	switch res.Code {
	case machine.OK:
		if err := machine.Decode(res.Body, &e); err != nil {
			return Entry{}, fmt.Errorf("get %q: %w", key, err)
		}
		return k.entry(e), nil
	case machine.NotFound:
		return Entry{}, fmt.Errorf("get %q: %w", key, ErrNotFound)
	}
	return Entry{}, session.Refused(fmt.Sprintf("get %q", key), res)
}

// Scan yields the entries whose keys begin with prefix, sorted by key, as they all
// stood at one revision.
func (k *KV) Scan(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		all, _, err := k.scan(ctx, k.prefix+prefix)
		for _, e := range all {
			if !yield(k.entry(e), nil) {
				return
			}
		}
		if err != nil {
			yield(Entry{}, fmt.Errorf("scan %q: %w", prefix, err))
		}
	}
}

func (k *KV) entry(e machine.KeyEntry) Entry {
	return Entry{Key: k.relative(e.Key), Value: e.Value, Rev: Rev(e.Rev), Created: Rev(e.Created)}
}

func (k *KV) relative(key string) string { return key[min(len(k.prefix), len(key)):] }
