package transport

import (
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"
)

const (
	// Connections of one peer, together with those that are retired or dead but not
	// noticed yet.
	maxPerPeer = 8
	// Peers remembered for their boot number while they are not connected.
	maxPeers = 4096
	// A second connection of the other side that comes later than this cannot have
	// been dialed at the same time: the peer has lost the first.
	simultaneous = dialTimeout + 2*time.Second
)

// peer is what is known of one name. All fields are guarded by Transport.mu.
type peer struct {
	boot  uint64 // highest seen
	addr  netip.AddrPort
	live  [purposes]*link // takes new streams
	dials [purposes]*attempt
	retry [purposes]backoff
	links int           // live, retired and dead ones
	up    chan struct{} // closed and replaced when a connection comes up
	cause error         // why the last connection ended
}

// peer finds or makes the entry of a name. The caller holds t.mu.
func (t *Transport) peer(name string) *peer {
	p := t.peers[name]
	if p == nil {
		p = &peer{up: make(chan struct{})}
		t.peers[name] = p
	}
	return p
}

// install makes a connection whose Hello was exchanged the one for new streams,
// unless another one is to stay (then that one is still live and l is retired).
func (t *Transport) install(l *link) error {
	t.mu.Lock()
	doomed, retired, err := t.place(l)
	t.mu.Unlock()
	for _, c := range doomed {
		_ = c.CloseWithError(connSuperseded, "")
	}
	if retired != nil {
		retired.retire(connDuplicate)
		retired.ping() // if the peer has lost it, the answer ends it at once
	}
	return err
}

// place enters l in the tables. The caller holds t.mu.
func (t *Transport) place(l *link) (doomed []*quic.Conn, retired *link, err error) {
	p := t.peer(l.peer.Name)
	switch {
	case t.closing:
		return nil, nil, ErrClosed
	case l.peer.Boot < p.boot:
		return nil, nil, ErrStale
	case l.peer.Boot > p.boot:
		doomed = t.supersede(l.peer.Name, l.peer.Boot)
	case p.links >= maxPerPeer:
		return nil, nil, ErrOverloaded
	}
	p.boot, p.addr = l.peer.Boot, l.peer.Addr
	old := p.live[l.purpose]
	if old != nil && t.keeps(old, l) {
		retired = l
	} else {
		retired = old
		p.live[l.purpose] = l
		close(p.up)
		p.up = make(chan struct{})
	}
	p.retry[l.purpose] = backoff{}
	p.links++
	t.links[l] = struct{}{}
	delete(t.fresh, l.conn)
	t.spawn(l.accept)
	t.spawn(l.listen)
	t.tell(l.peer.Name)
	return doomed, retired, nil
}

// supersede takes older starts of a node out of use. The caller holds t.mu.
func (t *Transport) supersede(name string, boot uint64) (doomed []*quic.Conn) {
	for l := range t.links {
		if l.peer.Name == name && l.peer.Boot < boot {
			doomed = append(doomed, l.conn)
		}
	}
	p := t.peers[name]
	p.live = [purposes]*link{}
	p.cause = ErrStale
	return doomed
}

// keeps decides between two connections of the same purpose between the same two
// starts of nodes. Both ends come to the same result: the one dialed by the smaller
// name stays, unless the peer can only have dialed because it has lost the old one.
func (t *Transport) keeps(old, l *link) bool {
	if old.dialed == l.dialed {
		return false
	}
	if !l.dialed && time.Since(old.since) > simultaneous {
		return false
	}
	return old.dialed == (t.cfg.Name < l.peer.Name)
}

// withdraw takes l out of use for new streams. cause is nil for one that nobody used.
func (t *Transport) withdraw(l *link, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[l.peer.Name]
	if p == nil || p.live[l.purpose] != l {
		return
	}
	p.live[l.purpose] = nil
	p.cause = cause
	t.tell(l.peer.Name)
}

// forget drops an ended connection from the tables.
func (t *Transport) forget(l *link, cause error) {
	t.withdraw(l, cause)
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.links[l]; known {
		delete(t.links, l)
		t.peers[l.peer.Name].links--
	}
	t.windows.release(l.conn)
}

// prune bounds what is remembered of peers that are gone. The caller holds t.mu.
func (t *Transport) prune() {
	for name, p := range t.peers {
		if len(t.peers) <= maxPeers {
			return
		}
		if p.links == 0 && p.dials == [purposes]*attempt{} {
			delete(t.peers, name)
		}
	}
}

// watcher is one function of Watch and what it was told last.
type watcher struct {
	fn   func(PeerEvent)
	told map[string]Peer // who it believes to be up
}

// tell lets the watchers know that something about a peer may have changed. The
// caller holds t.mu. Changes that cancel each other before the watchers run are not
// told, so what waits is bounded by the number of peers.
func (t *Transport) tell(name string) {
	t.news[name] = struct{}{}
	select {
	case t.newsy <- struct{}{}:
	default:
	}
}

// announce runs the watchers, one change after the other.
func (t *Transport) announce() {
	for {
		select {
		case <-t.newsy:
		case <-t.ctx.Done():
			return
		}
		t.mu.Lock()
		news := t.news
		t.news = map[string]struct{}{}
		t.mu.Unlock()
		t.roles.RLock()
		watchers := t.watchers
		t.roles.RUnlock()
		for name := range news {
			now, up, cause := t.state(name)
			for _, w := range watchers {
				w.follow(name, now, up, cause)
			}
		}
	}
}

// state is whether a peer takes new streams, and under which boot.
func (t *Transport) state(name string) (now Peer, up bool, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[name]
	if p == nil {
		return Peer{}, false, nil
	}
	if l := p.live[ctl]; l != nil {
		return l.peer, true, nil
	}
	return Peer{}, false, p.cause
}

func (w *watcher) follow(name string, now Peer, up bool, cause error) {
	before, was := w.told[name]
	if was && (!up || before.Boot != now.Boot) {
		if up {
			cause = ErrStale
		}
		delete(w.told, name)
		w.fn(PeerEvent{Peer: before, Cause: cause})
		was = false
	}
	if up && !was {
		w.told[name] = now
		w.fn(PeerEvent{Peer: now, Up: true})
	}
}
