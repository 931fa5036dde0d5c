// Package wal keeps one replica's raft log and its snapshots on disk.
//
// A log is a directory of segments, files of fixed size that are reserved before they
// are used. A segment holds frames; a frame holds what one call of [Log.Append] made
// durable: entries and the HardState that came with them, or a marker that names the
// newest snapshot. Every frame's CRC32C is seeded with that of the frame before it, and
// every segment starts with the CRC at the end of the one before, so the log is one
// chain: nothing in it can be changed, dropped or exchanged without breaking it.
//
//	segment   head 96 bytes | frame | frame | ... | zeros
//	frame     head 16 bytes | payload | 0xa5 padding, 2 to 17 bytes, to a multiple of 16
//	snapshot  head | chunk | chunk | ... | footer
//
// # Invariants
//
// W1: what was acknowledged survives the loss of power, and damage is reported, never
// served. At most one frame is ever written and not yet synced; so exactly the last
// frame of a log may be torn, and it counts as torn only if one of its sectors is all
// zero, which is what the disk held before. Everything else that does not verify is
// damage. Two measures make the rule sharp: space after the last frame is zero, also in
// recycled segments; and no frame has a sector that is nearly zero by itself, since
// payloads that would are masked (see seal).
//
// HardState is never older than the entries that came with it. Entries are replaced by
// later frames, as raft replaces a conflicting suffix; the file before stays as it is.
// A snapshot is complete and durable under its name before its marker is in the log, and
// segments go, oldest first, only after that.
//
// # Concurrency
//
// All methods may be called at once. One append is written at a time; readers wait for
// no disk, unless they read entries that are no longer in memory. SaveSnapshot and
// Compact exclude each other, and stop appends only while they write their marker.
// There is no goroutine, and the order of disk operations depends on nothing but the
// order of calls.
//
// # Failure
//
// The first error of a write or a sync poisons the log: every later append returns
// [ErrPoisoned], because after a failed fsync nobody knows what the disk holds. Only
// opening the log again, which reads everything back, ends that. A full disk is met
// while a segment is reserved, before anything of the append is written: that is a
// [FullError], not poison, and the same append succeeds once there is room.
package wal
