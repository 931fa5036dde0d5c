// Package transport moves bytes between the nodes of one cluster over one UDP socket:
// framed streams and calls over QUIC, and sealed gossip packets beside them.
//
// It is made from quic-go, TLS identities derived from the cluster secret, and
// sealed datagrams that are split off below quic-go by their first byte. It knows
// peers by name; where they are it asks an [AddressBook].
//
//	first byte of a datagram   0x01 sealed gossip; other 0x00-0x3f dropped; 0x40-0xff QUIC
//	first byte of a stream     its Class; then frames of internal/wire (gossip: raw)
//
// Between two nodes there is one connection for all but large transfers, and one for
// those, each opened when first needed and closed when unused for a while. The first
// stream of a connection is its control stream: the dialer says Hello, the other end
// answers, and only then is the peer up. When both dial at once, the connection
// dialed by the smaller name stays. The other is retired: no new streams, and it
// ends when both ends have said how many streams they opened and that all of them
// are done, so no stream that carries data is lost to a race.
//
// # Invariants
//
// A handler only ever sees a peer that holds the cluster secret, under the name of
// its certificate. Once a start of a node was seen, no older start of it is
// accepted, and its connections end.
//
// A stream counts against its class until its handler returns, also if the peer
// resets it earlier: who opens and resets streams quickly gets no more handlers.
//
// # Concurrency
//
// All methods of a [Transport] may be called at once. A [Stream] has one reader and
// one writer; Cancel and the deadlines may come from anywhere. Handlers run on
// goroutines of their own, and Close waits for them.
//
// # Failure
//
// A peer that crashes is noticed after about two seconds if it restarts (stateless
// reset, RFC 9000 section 10.3), else after ten; one that closes is noticed at once.
// Bad bytes from a peer end the stream or the connection they came on. A stranger is
// refused in the handshake and never reaches a handler.
//
// Limits, all per node: 1024 connections, 200 handshakes a second and 50 of them from
// one address, 512 streams of a peer, 256 calls in flight to one peer and 4096 in
// all, 1024 gossip packets not yet taken. At each limit the excess is refused or,
// for packets, dropped; calls wait for their turn until their ctx ends.
package transport
