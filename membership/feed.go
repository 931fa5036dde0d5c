package membership

import (
	"maps"
	"slices"
)

// maxFeed bounds the events that wait for the slowest watcher, at twice this; one that
// falls further behind is told the differences instead.
const maxFeed = 1024

// feed is the one order of events that all watchers see (M1).
type feed struct {
	events []Event
	first  uint64 // number of events[0]
}

func (f *feed) append(events ...Event) {
	f.events = append(f.events, events...)
	if len(f.events) > 2*maxFeed { // seldom, so that an append costs the same on average
		over := len(f.events) - maxFeed
		f.first += uint64(over)
		f.events = slices.Clone(f.events[over:])
	}
}

func (f *feed) end() uint64 { return f.first + uint64(len(f.events)) }

// watcher is one reader of the feed. It remembers what its user was told, so that the
// differences to the present are told by the same rules as every change.
type watcher struct {
	next uint64
	told map[string]Member // members in sight, as last told
	live bool              // had its snapshot
}

// read returns what the watcher is to be told now; nothing if it is up to date.
func (w *watcher) read(f *feed, r *roster) []Event {
	if w.live && w.next >= f.first {
		from := min(w.next-f.first, uint64(len(f.events)))
		w.next = f.end()
		return slices.Clone(f.events[from:])
	}
	var out []Event
	if w.live {
		out = append(out, Event{Kind: Resync})
	}
	w.live, w.next = true, f.end()
	return append(w.catchUp(out, r), Event{Kind: Synced})
}

// catchUp appends the differences between what was told and the roster, by name.
func (w *watcher) catchUp(out []Event, r *roster) []Event {
	now := map[string]Member{}
	for _, e := range r.members {
		if e.state.present() {
			now[e.name] = e.member()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.told)) {
		if _, still := now[name]; !still {
			out = append(out, farewell(w.told[name], r.members[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		old, was := w.told[name]
		out = append(out, changes(old, was, now[name])...)
	}
	return out
}

// farewell tells how a member that is out of sight went; e is nil if that is forgotten.
func farewell(old Member, e *entry) Event {
	if e == nil {
		old.State = StateFailed
		return Event{Failed, old}
	}
	if e.state == StateLeft {
		return Event{Left, e.member()}
	}
	return Event{Failed, e.member()}
}

// changes tells how a member in sight came to be as it is now.
func changes(old Member, was bool, now Member) (out []Event) {
	switch {
	case !was:
		return []Event{{Joined, now}}
	case old.Boot != now.Boot:
		return []Event{{Restarted, now}}
	case !alike(old, now):
		out = append(out, Event{Updated, now})
	}
	if old.State == StateAlive && now.State == StateLeaving {
		out = append(out, Event{Leaving, now})
	}
	return out
}

// tell notes what the user is about to be told.
func (w *watcher) tell(e Event) {
	switch e.Kind {
	case Joined, Restarted, Updated, Leaving:
		w.told[e.Member.Name] = e.Member
	case Left, Failed:
		delete(w.told, e.Member.Name)
	}
}
