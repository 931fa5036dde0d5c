// Package seal closes gossip packets so that only members of a cluster can write
// them and only the addressed start of a node can read them.
//
//	0x01 | key id (4) | nonce (24) | XChaCha20-Poly1305 ciphertext | tag (16)
//
// The key comes from the cluster secret by HKDF. The additional data is the version,
// the cluster and the recipient's gossip name, which contains its boot number: no
// packet opens at another node, and none recorded before a restart opens after it.
// Within one start of a node the failure detector itself ignores what is old.
//
// # Invariants
//
// A nonce is 192 random bits, so no counter has to survive and no limit of packets
// per key is in reach. A packet is answered by nobody before its tag has verified.
//
// # Concurrency
//
// A Sealer does not change; all methods may be called at once.
//
// # Failure
//
// A packet that does not open is [ErrUnknownKey], found at the price of a compare,
// or [ErrForged], at the price of the tag.
package seal

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/clatter-go/clatter/transport/internal/identity"
)

const (
	// First is the first byte of a sealed packet. Its two highest bits are clear,
	// which no QUIC packet's are (RFC 9443).
	First = 0x01
	// Overhead is what the seal adds to a packet, in bytes.
	Overhead = header + chacha20poly1305.Overhead

	idSize = 4
	header = 1 + idSize + chacha20poly1305.NonceSizeX
)

var (
	// ErrUnknownKey means that the packet is of another cluster or secret.
	ErrUnknownKey = errors.New("sealed with an unknown key")
	// ErrForged means that the packet is damaged, forged or for another recipient.
	ErrForged = errors.New("seal is broken")
)

// Sealer seals with the first secret and opens with all.
type Sealer struct {
	keys  []key
	bound string    // the additional data up to the recipient
	buf   sync.Pool // of *[]byte, for additional data
}

type key struct {
	id   [idSize]byte
	aead cipher.AEAD
}

// New makes the Sealer of a cluster.
func New(cluster string, secrets [][]byte) (*Sealer, error) {
	s := &Sealer{bound: "clatter gossip 1\x00" + cluster + "\x00"}
	s.buf.New = func() any { return new([]byte) }
	for _, secret := range secrets {
		b, err := identity.Derive(secret, cluster, "gossip", chacha20poly1305.KeySize+idSize)
		if err != nil {
			return nil, err
		}
		aead, err := chacha20poly1305.NewX(b[:chacha20poly1305.KeySize])
		if err != nil {
			return nil, err
		}
		s.keys = append(s.keys, key{[idSize]byte(b[chacha20poly1305.KeySize:]), aead})
	}
	if len(s.keys) == 0 {
		return nil, errors.New("seal without a secret")
	}
	return s, nil
}

// Bound is the additional data for a recipient, to be kept by one who opens many
// packets.
func (s *Sealer) Bound(recipient string) []byte { return []byte(s.bound + recipient) }

// Seal appends packet, sealed for recipient, to dst.
func (s *Sealer) Seal(dst, packet []byte, recipient string) []byte {
	k := &s.keys[0]
	at := len(dst)
	dst = append(dst, First)
	dst = append(dst, k.id[:]...)
	dst = append(dst, make([]byte, chacha20poly1305.NonceSizeX)...)
	nonce := dst[at+1+idSize:]
	_, _ = rand.Read(nonce) // never fails: crypto/rand
	bound := s.buf.Get().(*[]byte)
	defer s.buf.Put(bound)
	*bound = append(append((*bound)[:0], s.bound...), recipient...)
	return k.aead.Seal(dst, nonce, packet, *bound)
}

// Open appends what is sealed in b to dst. bound is that of the one who opens. b may
// be any bytes; dst must not overlap it.
func (s *Sealer) Open(dst, b, bound []byte) ([]byte, error) {
	if len(b) < Overhead || b[0] != First {
		return dst, ErrForged
	}
	err := ErrUnknownKey
	for i := range s.keys {
		k := &s.keys[i]
		if !bytes.Equal(k.id[:], b[1:1+idSize]) {
			continue
		}
		opened, bad := k.aead.Open(dst, b[1+idSize:header], b[header:], bound)
		if bad == nil {
			return opened, nil
		}
		err = ErrForged
	}
	return dst, err
}
