package wal

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/clatter-go/clatter/internal/vfs"
)

// Head of a frame, little endian. It never straddles two sectors, because frames are
// aligned to its size: it is on disk whole or not at all.
//
//	0  payload bytes
//	4  frameMagic
//	6  key of the mask, 0 for none
//	7  0
//	8  CRC32C of payload and padding as they are on disk, seeded with the chain
//	12 CRC32C of the bytes before, seeded with the salt of the segment
const (
	frameHead  = 16
	frameAlign = 16
	frameMagic = 0xc1a7
	padByte    = 0xa5
	minPad     = 2       // so that one flipped bit cannot make the last sector all zero
	maxPayload = 1 << 30 // an append beyond it is refused

	// A sector with fewer bytes that are not zero could look as if it had never been
	// written after little damage.
	heavy = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameBytes is what a frame takes on disk.
func frameBytes(payload int) int {
	return (frameHead + payload + minPad + frameAlign - 1) &^ (frameAlign - 1)
}

// seal completes a frame that will lie at off of its segment: b is room for the head,
// then the payload. It returns the frame and the chain behind it.
//
// A payload that holds a whole sector of (nearly) zeros is masked with a stream of
// bytes, by the first key that leaves no such sector. Otherwise a user's zeros could not
// be told from a sector that never reached the disk, and damage elsewhere in the last
// frame would pass for a torn write. All other payloads are on disk as they are.
func seal(b []byte, off int64, chain, salt uint32) ([]byte, uint32) {
	payload := len(b) - frameHead
	for n := frameBytes(payload); len(b) < n; {
		b = append(b, padByte)
	}
	key := byte(0)
	for key < 255 && hasLightSector(b, off) {
		mask(b[frameHead:frameHead+payload], salt, key) // takes the last one off
		key++
		mask(b[frameHead:frameHead+payload], salt, key)
	}
	chain = crc32.Update(chain, castagnoli, b[frameHead:])
	binary.LittleEndian.PutUint32(b[0:], uint32(payload))
	binary.LittleEndian.PutUint16(b[4:], frameMagic)
	b[6], b[7] = key, 0
	binary.LittleEndian.PutUint32(b[8:], chain)
	binary.LittleEndian.PutUint32(b[12:], crc32.Update(salt, castagnoli, b[:12]))
	return b, chain
}

// hasLightSector looks at the sectors that lie wholly inside the frame. The first piece
// has the head and the last one the padding.
func hasLightSector(b []byte, off int64) bool {
	const sector = vfs.SectorBytes
	for at := int(sector - off%sector); at+sector < len(b); at += sector {
		if light(b[at : at+sector]) {
			return true
		}
	}
	return false
}

// light reports whether so few bytes differ from zero that damage could hide them.
func light(sector []byte) bool {
	n := 0
	for _, c := range sector {
		if c != 0 {
			if n++; n == heavy {
				return false
			}
		}
	}
	return true
}

// mask adds a stream of bytes (splitmix64) to b, or takes it off again. The salt keeps
// a user from choosing values that the stream makes zero.
func mask(b []byte, salt uint32, key byte) {
	if key == 0 {
		return
	}
	state := uint64(salt)<<8 | uint64(key)
	for i := 0; i < len(b); i += 8 {
		state += 0x9e3779b97f4a7c15
		z := (state ^ state>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		for j := i; j < min(i+8, len(b)); j++ {
			b[j] ^= byte(z)
			z >>= 8
		}
	}
}

// frame is what a head says.
type frame struct {
	payload int
	key     byte
	sum     uint32 // chain behind it
}

func (f frame) bytes() int { return frameBytes(f.payload) }

// parseHead reports whether b starts with the head of a frame of this segment.
func parseHead(b []byte, salt uint32) (frame, bool) {
	if len(b) < frameHead || binary.LittleEndian.Uint16(b[4:]) != frameMagic ||
		binary.LittleEndian.Uint32(b[12:]) != crc32.Update(salt, castagnoli, b[:12]) {
		return frame{}, false
	}
	f := frame{payload: int(binary.LittleEndian.Uint32(b)), key: b[6], sum: binary.LittleEndian.Uint32(b[8:])}
	return f, f.payload <= maxPayload
}

// open verifies the frame that b starts with and returns its payload, unmasked in
// place. It reports false if b is too short for it, or is not what was written.
func (f frame) open(b []byte, chain, salt uint32) ([]byte, bool) {
	n := f.bytes()
	if n > len(b) || crc32.Update(chain, castagnoli, b[frameHead:n]) != f.sum {
		return nil, false
	}
	payload := b[frameHead : frameHead+f.payload]
	mask(payload, salt, f.key)
	return payload, true
}

// tear judges what lies at off, behind the last frame that verified, where b is the
// last segment of a log. No reason means that the last frame was torn (protocol 36); it
// is to be replaced by zeros up to end.
func tear(b []byte, off int, salt uint32) (end int, reason string) {
	const sector = vfs.SectorBytes
	f, ok := parseHead(b[off:], salt)
	if !ok {
		if !allZero(b[off:min(off/sector*sector+sector, len(b))]) {
			return 0, "what should be the head of a frame is none"
		}
		// The sector with the head is missing, so its length is unknown. But a frame that
		// was written after it proves that it had been synced.
		for at := off + frameAlign; at+frameHead <= len(b); at += frameAlign {
			if _, ok := parseHead(b[at:], salt); ok {
				return 0, "frames that were synced are gone"
			}
		}
		return len(bytes.TrimRight(b, "\x00")), ""
	}
	end = off + f.bytes()
	if end > len(b) {
		return 0, "the frame is longer than its segment"
	}
	if !allZero(b[end:]) {
		return 0, "the frame fails its checksum, and it is not the last one"
	}
	for at := off; at < end; {
		next := min(at/sector*sector+sector, end)
		if allZero(b[at:next]) {
			return end, ""
		}
		at = next
	}
	return 0, "the last frame fails its checksum, and all its sectors were written"
}

var zeros [4096]byte

func allZero(b []byte) bool {
	for len(b) > len(zeros) {
		if !bytes.Equal(b[:len(zeros)], zeros[:]) {
			return false
		}
		b = b[len(zeros):]
	}
	return bytes.Equal(b, zeros[:len(b)])
}
