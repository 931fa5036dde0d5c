package transport

import "fmt"

// Class is what a stream is for. It is the first byte of the stream, and decides on
// which connection it runs, how large its frames may be and how many of it run here
// at once; a stream beyond that is refused with [ErrOverloaded] at its opener.
type Class byte

const (
	classControl Class = 0x01
	// classGossip carries memberlist's streams, as they are.
	classGossip Class = 0x10
	// ClassRaftCtl carries heartbeats, votes and read rounds: small, never behind a
	// large append. Frames to 64 KiB, 4 streams a peer, 256 in all.
	ClassRaftCtl Class = 0x20
	// ClassRaftLog carries appends and their answers. Frames to 4 MiB + 64 KiB,
	// 4 streams a peer, 256 in all.
	ClassRaftLog Class = 0x21
	// ClassCommand carries commands to the leader and answers and events back.
	// Frames to 4 MiB, 4 streams a peer, 1024 in all.
	ClassCommand Class = 0x28
	// classRPC carries calls, one at a time on each stream.
	classRPC Class = 0x30
	// ClassWatch carries changes to a watcher. Frames to 4 MiB, 256 streams a peer,
	// 4096 in all.
	ClassWatch Class = 0x31
	// ClassBulk carries snapshots and large blobs on a connection of its own, so that
	// they stand in front of nothing else. Frames to 1 MiB, 4 streams a peer, 16 in all.
	ClassBulk Class = 0x40
)

// rules of a class.
type rules struct {
	name     string
	purpose  purpose
	maxFrame int  // largest payload of a frame
	perPeer  int  // streams a peer may have open to us
	perNode  int  // streams all peers may have open to us
	urgency  int8 // RFC 9218: lower goes first
	buffer   int  // of the frame reader
}

var classes = map[Class]rules{
	classGossip:  {"gossip", ctl, 0, 8, 128, 2, 0},
	ClassRaftCtl: {"raft-ctl", ctl, 64 << 10, 4, 256, 0, 16 << 10},
	ClassRaftLog: {"raft-log", ctl, 4<<20 + 64<<10, 4, 256, 1, 64 << 10},
	ClassCommand: {"command", ctl, 4 << 20, 4, 1024, 1, 32 << 10},
	// More than a peer has calls in flight: a stream is free here a moment after its answer is there.
	classRPC:   {"rpc", ctl, rpcFrame, 3 * maxCallsToPeer / 2, 4096, 3, 4 << 10},
	ClassWatch: {"watch", ctl, 4 << 20, 256, 4096, 3, 4 << 10},
	ClassBulk:  {"bulk", bulk, 1 << 20, 4, 16, 6, 64 << 10},
}

// String is the name of the class.
func (c Class) String() string {
	if r, ok := classes[c]; ok {
		return r.name
	}
	return fmt.Sprintf("class 0x%02x", byte(c))
}

// purpose tells the connections of a pair of nodes apart.
type purpose uint8

const (
	ctl  purpose = iota // all but large transfers
	bulk                // large transfers, opened on demand
	purposes
)

// String is the name of the purpose.
func (p purpose) String() string { return [...]string{"ctl", "bulk"}[p] }

// framed tells whether streams of the class are for rooms to open and to handle.
func (c Class) framed() bool {
	_, known := classes[c]
	return known && c != classRPC && c != classGossip
}
