package consensus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/wire"
	"github.com/clatter-go/clatter/transport"
)

const (
	markEvery  = time.Second     // a voter in touch with the leader tells its watchers how far they are
	markWithin = 4 * time.Second // without a mark for so long, a watcher moves to another voter
)

// Update is one step of a watch: an event, or a mark.
type Update struct {
	Event  machine.Event
	Synced bool        // no event: everything up to Rev has been seen
	Rev    machine.Rev // of the event or the mark; a watch can be resumed from it
}

// Watch yields the events of a topic and name (see [machine.Topic]) in the order
// of their revisions, each once and none left out. from is the revision after which
// it begins: history first, then a Synced mark, then what happens. From 0 begins
// now: the first Update is a mark whose Rev is at least that of every change that
// was answered before the call. Further marks tell of progress.
//
// The watch is served by a voter, this node's own if it is one, and moves to
// another by itself when that is cut off or the reader was so slow that 16 384
// events queued up. It ends with the cause of ctx, with ErrClosed, or with a
// *CompactedError when the history that it would have to go on from is gone.
func (c *Client) Watch(ctx context.Context, topic machine.Topic, name string, from machine.Rev) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		w := watchRequest{topic: topic, name: name, from: from, now: from == 0}
		wait := retryWait
		for attempt := 0; ; attempt++ {
			before := w.from
			more, err := c.watchOnce(ctx, &w, attempt, yield)
			if !more {
				return
			}
			if err = c.watchEnd(ctx, err); err != nil {
				yield(Update{}, fmt.Errorf("watch %q: %w", name, err))
				return
			}
			if w.from != before {
				wait = retryWait
			}
			_ = pause(ctx, wait)
			wait = min(2*wait, retryMax)
		}
	}
}

// watchEnd returns why the watch ends, or nil if it goes on at another voter.
func (c *Client) watchEnd(ctx context.Context, err error) error {
	var gone *CompactedError
	switch {
	case errors.As(err, &gone):
		return gone
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.engine.ctx.Err() != nil:
		return ErrClosed
	}
	return nil
}

// source is a subscription as its watcher sees it, near or far.
type source interface {
	next(ctx context.Context) ([]Update, error)
	close()
}

// watchOnce watches at one voter until that ends. more is false if the consumer
// has had enough.
func (c *Client) watchOnce(ctx context.Context, w *watchRequest, attempt int, yield func(Update, error) bool) (more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.engine.ctx, cancel)()
	src, err := c.subscribe(ctx, *w, attempt)
	if err != nil {
		return true, err
	}
	defer src.close()
	for {
		batch, err := src.next(ctx)
		if err != nil {
			return true, err
		}
		for _, u := range batch {
			if !u.Synced && u.Rev <= w.from {
				continue // a voter that moved told it already
			}
			w.from, w.now = max(w.from, u.Rev), false
			if !yield(u, nil) {
				return false, nil
			}
		}
	}
}

func (c *Client) subscribe(ctx context.Context, w watchRequest, attempt int) (source, error) {
	opening, done := context.WithTimeout(ctx, markWithin)
	defer done()
	names := c.engine.voterNames()
	if v := c.engine.replica(); v != nil {
		if attempt%2 == 0 {
			s, err := v.subscribe(opening, w)
			if err != nil {
				return nil, err
			}
			return &near{voter: v, sub: s}, nil
		}
		attempt /= 2
	}
	if len(names) == 0 {
		return nil, errMoved
	}
	// Nodes begin at different voters, so that watchers spread over them.
	to := names[(int(c.engine.cfg.Boot)+len(c.engine.cfg.Name)+attempt)%len(names)]
	if to == c.engine.cfg.Name {
		return nil, errMoved
	}
	st, err := c.engine.cfg.Transport.Open(opening, to, transport.ClassWatch)
	if err != nil {
		return nil, err
	}
	f := &far{stream: st, stop: context.AfterFunc(ctx, st.Cancel)}
	if err := st.WriteFrames(wire.AppendFrame(nil, frameWatch, appendWatch(nil, c.engine.hash(), w))); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// near is a subscription at this node's own replica.
type near struct {
	voter *voter
	sub   *subscription
}

func (n *near) next(ctx context.Context) ([]Update, error) {
	late := time.NewTimer(markWithin)
	defer late.Stop()
	for {
		batch, err := n.sub.take()
		if len(batch) > 0 || err != nil {
			return batch, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late.C:
			return nil, errMoved
		case <-n.sub.bell:
		}
	}
}

func (n *near) close() { n.voter.hub.drop(n.sub) }

// far is a subscription over a stream.
type far struct {
	stream *transport.Stream
	stop   func() bool
}

func (f *far) next(context.Context) ([]Update, error) {
	_ = f.stream.SetReadDeadline(time.Now().Add(markWithin))
	typ, payload, err := f.stream.ReadFrame()
	if err != nil {
		return nil, err
	}
	p := parser{b: payload}
	switch typ {
	case frameEvents:
		events, err := p.events()
		batch := make([]Update, 0, len(events))
		for _, e := range events {
			batch = append(batch, Update{Event: e, Rev: e.Rev})
		}
		return batch, err
	case frameMark:
		rev := p.number()
		return []Update{{Synced: true, Rev: machine.Rev(rev)}}, p.err()
	case frameGone:
		return nil, &CompactedError{Oldest: machine.Rev(p.number())}
	}
	return nil, errMoved
}

func (f *far) close() {
	f.stop()
	f.stream.Cancel()
}
