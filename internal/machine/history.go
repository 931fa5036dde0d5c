package machine

import "sort"

// history keeps the last observable events, so that a watcher that lost its stream
// goes on where it was. Its bounds are replicated with it: a voter that kept less
// than another would answer Compacted where the other does not.
type history struct {
	events []Event // by Rev, from start on
	start  int
	bytes  uint64 // of names and bodies
	floor  Rev    // everything up to and with it may be gone
	limit  historyLimit
}

type historyLimit struct{ Events, Bytes uint64 }

const historyPage = 1 << 20 // bytes of events in one answer

func (h *history) kept() []Event { return h.events[h.start:] }

func (h *history) add(e Event) {
	h.events = append(h.events, e)
	h.bytes += uint64(len(e.Name) + len(e.Body))
	for uint64(len(h.kept())) > h.limit.Events || h.bytes > h.limit.Bytes {
		h.forgetOldest()
	}
}

func (h *history) forgetOldest() {
	e := &h.events[h.start]
	h.floor = e.Rev
	h.bytes -= uint64(len(e.Name) + len(e.Body))
	*e = Event{}
	h.start++
	if h.start > 64 && h.start > len(h.events)/2 { // each event is moved at most once per time it was passed
		n := copy(h.events, h.kept())
		clear(h.events[n:])
		h.events, h.start = h.events[:n], 0
	}
}

// compact forgets everything up to and with rev.
func (h *history) compact(a *apply, c *Compact) Result {
	if c.Rev > a.m.rev {
		return invalid("compact beyond the current revision")
	}
	for len(h.kept()) > 0 && h.kept()[0].Rev <= c.Rev {
		h.forgetOldest()
	}
	h.floor = max(h.floor, c.Rev)
	return Result{Rev: h.floor}
}

// query answers a QueryHistory: Rev of the answer is how far the list is complete.
func (h *history) query(q *Query, now Rev) Result {
	if q.Topic == TopicTasks {
		return Result{Code: Compacted} // it keeps none: an empty list would be a lie
	}
	if q.Rev < h.floor {
		return Result{Code: Compacted, Rev: h.floor}
	}
	kept := h.kept()
	from := sort.Search(len(kept), func(i int) bool { return kept[i].Rev > q.Rev })
	var list EventList
	size := 0
	for i := range kept[from:] {
		e := &kept[from+i]
		if !q.Topic.Matches(q.Name, e) {
			continue
		}
		if size > historyPage || q.Limit > 0 && uint64(len(list.Events)) >= q.Limit {
			return Result{Rev: list.Events[len(list.Events)-1].Rev, N: 1, Body: Encode(&list)}
		}
		list.Events = append(list.Events, *e)
		size += len(e.Name) + len(e.Body)
	}
	return Result{Rev: now, Body: Encode(&list)}
}

func (h *history) fields(k *coder) {
	k.u64(&h.limit.Events)
	k.u64(&h.limit.Bytes)
	k.u64((*uint64)(&h.floor))
	kept := h.kept()
	list(k, &kept)
	if !k.reading {
		return
	}
	h.events, h.start, h.bytes = kept, 0, 0
	for i := range kept {
		kept[i].Body = cloned(kept[i].Body)
		h.bytes += uint64(len(kept[i].Name) + len(kept[i].Body))
	}
}
