package kv

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// Kind says what a Change is.
type Kind uint8

// Kinds of changes.
const (
	Init   Kind = iota + 1 // an entry as it stood when the watch began
	Synced                 // all before this was the past; repeated now and then as a sign of life
	Put
	Delete
)

// String names the kind.
func (k Kind) String() string {
	return [...]string{"?", "Init", "Synced", "Put", "Delete"}[min(int(k), 4)]
}

// Change is one step of a watch.
type Change struct {
	Kind    Kind
	Entry   Entry  // of a Delete: key and revision of the delete
	Prev    *Entry // what the key was before a Put or Delete; nil if it did not exist
	Rev     Rev    // From(Rev) goes on after this change
	Last    bool   // the last change of its transaction
	Expired bool   // a Delete by the end of a session or of a TTL
}

// ReadOption is an option of Watch.
type ReadOption func(*read)

type read struct {
	from   machine.Rev
	resume bool
}

// From lets a watch go on after revision r: no Init, but every later change. From(0)
// begins with the first change there ever was.
func From(r Rev) ReadOption {
	return func(o *read) { o.from, o.resume = machine.Rev(max(r, empty)), true }
}

// empty is the revision of a store that never changed. To those below, 0 means now.
const empty = 1

// Watch yields the entries whose keys begin with prefix (Init, as they stood at one
// revision), one Synced, and then every change once and in order, however often the
// node it is served by or the leader changes. The last pair carries the reason why
// it ended: the cause of ctx, or a [*CompactedError] if the watcher was so slow, or
// From so old, that history is forgotten (10 000 revisions are kept).
func (k *KV) Watch(ctx context.Context, prefix string, opts ...ReadOption) iter.Seq2[Change, error] {
	var o read
	for _, f := range opts {
		f(&o)
	}
	return func(yield func(Change, error) bool) {
		err := k.watch(ctx, k.prefix+prefix, o, func(c Change) bool { return yield(c, nil) })
		if err != nil {
			yield(Change{}, fmt.Errorf("watch %q: %w", prefix, err))
		}
	}
}

func (k *KV) watch(ctx context.Context, prefix string, o read, yield func(Change) bool) error {
	if !o.resume {
		all, rev, err := k.scan(ctx, prefix)
		if err != nil {
			return err
		}
		for _, e := range all {
			if !yield(Change{Kind: Init, Entry: k.entry(e), Rev: Rev(rev)}) {
				return nil
			}
		}
		if !yield(Change{Kind: Synced, Rev: Rev(rev)}) {
			return nil
		}
		o.from = rev
	}
	told := !o.resume // the first Synced of the stream repeats ours
	for u, err := range k.keeper.Watch(ctx, machine.TopicKeys, prefix, o.from) {
		if gone, ok := errors.AsType[*consensus.CompactedError](err); ok {
			return &CompactedError{Oldest: Rev(gone.Oldest)}
		}
		if err != nil {
			return err
		}
		if u.Synced && told {
			told = false
			continue
		}
		c, err := k.change(u)
		if err != nil {
			return err
		}
		if !yield(c) {
			return nil
		}
	}
	return context.Cause(ctx)
}

func (k *KV) change(u consensus.Update) (Change, error) {
	if u.Synced {
		return Change{Kind: Synced, Rev: Rev(u.Rev)}, nil
	}
	var m machine.Change
	if err := machine.Decode(u.Event.Body, &m); err != nil {
		return Change{}, err
	}
	c := Change{Kind: Put, Entry: k.entry(m.Entry), Rev: Rev(u.Event.Rev), Last: u.Event.Last, Expired: m.Expired}
	if u.Event.Kind == machine.EventDelete {
		c.Kind = Delete
	}
	c.Entry.Rev = c.Rev
	if m.HadPrev {
		prev := k.entry(m.Prev)
		c.Prev = &prev
	}
	return c, nil
}
