package kv

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/machine"
)

// page is how many entries are asked for at once; a page is 1 MiB at most.
const page = 1000

// scan reads all entries below prefix as they stood at one revision. Pages are
// read at different moments; what changed between the first and the last of them
// is read from the history and put on top. If that is forgotten already, all begins
// again.
func (k *KV) scan(ctx context.Context, prefix string) (all []machine.KeyEntry, rev machine.Rev, err error) {
	for {
		var first machine.Rev
		all, first, rev, err = k.pages(ctx, prefix)
		if err != nil || first == rev {
			return all, rev, err
		}
		missed, complete, err := k.history(ctx, prefix, first, rev)
		if err != nil {
			return nil, 0, err
		}
		if complete {
			return patch(all, missed), rev, nil
		}
	}
}

func (k *KV) pages(ctx context.Context, prefix string) (all []machine.KeyEntry, first, last machine.Rev, err error) {
	for after, more := "", true; more; {
		res, err := k.keeper.Query(ctx, &machine.Query{Kind: machine.QueryScan, Name: prefix, After: after, Limit: page})
		if err != nil {
			return nil, 0, 0, err
		}
		if res.Code != machine.OK {
			return nil, 0, 0, session.Refused("scan", res)
		}
		var list machine.KeyList
		if err := machine.Decode(res.Body, &list); err != nil {
			return nil, 0, 0, err
		}
		if first == 0 {
			first = res.Rev
		}
		last = res.Rev
		all = append(all, list.Entries...)
		if more = list.More && len(list.Entries) > 0; more {
			after = list.Entries[len(list.Entries)-1].Key
		}
	}
	return all, first, last, nil
}

// history reads the changes after from up to and with to, or more of them, page by
// page; complete is false if they are forgotten.
func (k *KV) history(ctx context.Context, prefix string, from, to machine.Rev) (events []machine.Event, complete bool, err error) {
	for from < to {
		res, err := k.keeper.Query(ctx, &machine.Query{Kind: machine.QueryHistory, Topic: machine.TopicKeys, Name: prefix, Rev: from})
		if err != nil {
			return nil, false, err
		}
		switch res.Code {
		case machine.OK:
		case machine.Compacted:
			return nil, false, nil
		default:
			return nil, false, session.Refused("history", res)
		}
		var list machine.EventList
		if err := machine.Decode(res.Body, &list); err != nil {
			return nil, false, fmt.Errorf("history: %w", err)
		}
		for _, e := range list.Events {
			if e.Rev <= to {
				events = append(events, e)
			}
		}
		from = res.Rev
	}
	return events, true, nil
}

// patch puts changes on top of entries of which some may have them already.
func patch(all []machine.KeyEntry, changes []machine.Event) []machine.KeyEntry {
	byKey := make(map[string]machine.KeyEntry, len(all))
	for _, e := range all {
		byKey[e.Key] = e
	}
	for _, e := range changes {
		var c machine.Change
		if machine.Decode(e.Body, &c) != nil || byKey[e.Name].Rev >= e.Rev {
			continue
		}
		if e.Kind == machine.EventDelete {
			delete(byKey, e.Name)
		} else {
			byKey[e.Name] = c.Entry
		}
	}
	all = all[:0]
	for _, e := range byKey {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b machine.KeyEntry) int { return cmp.Compare(a.Key, b.Key) })
	return all
}
