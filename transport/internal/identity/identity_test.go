package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	one = []byte("the first secret of the cluster")
	two = []byte("the second one, of the rotation")
)

func make1(t testing.TB, cluster, name string, secrets ...[]byte) *Identity {
	i, err := New(cluster, Node{name, 7}, secrets)
	require.NoError(t, err)
	return i
}

// meet shakes hands and exchanges a byte, since a TLS 1.3 client is done before the
// server has judged it.
func meet(client, server *tls.Config) (clientErr, serverErr error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err, err
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err, err
	}
	defer a.Close()
	b, err := l.Accept()
	if err != nil {
		return err, err
	}
	done := make(chan error, 1)
	go func() {
		defer b.Close()
		s := tls.Server(b, server)
		err := s.HandshakeContext(context.Background())
		if err == nil {
			_, err = s.Write([]byte{1})
		}
		done <- err
	}()
	c := tls.Client(a, client)
	_, clientErr = c.Read(make([]byte, 1))
	a.Close()
	return clientErr, <-done
}

func TestOnlyMembersMeet(t *testing.T) {
	for _, c := range []struct {
		name           string
		client, server *Identity
		dial           string
		ok             bool
	}{
		{"same secret", make1(t, "c", "a", one), make1(t, "c", "b", one), "b", true},
		{"any member", make1(t, "c", "a", one), make1(t, "c", "b", one), "", true},
		{"other name", make1(t, "c", "a", one), make1(t, "c", "b", one), "x", false},
		{"other secret", make1(t, "c", "a", one), make1(t, "c", "b", two), "b", false},
		{"other cluster", make1(t, "c", "a", one), make1(t, "d", "b", one), "b", false},
		{"rotation, first round", make1(t, "c", "a", one, two), make1(t, "c", "b", one), "b", true},
		{"rotation, second round", make1(t, "c", "a", two, one), make1(t, "c", "b", one, two), "b", true},
		{"rotation, third round", make1(t, "c", "a", two), make1(t, "c", "b", two, one), "b", true},
		{"rotation, a round skipped", make1(t, "c", "a", one), make1(t, "c", "b", two, one), "b", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			clientErr, serverErr := meet(c.client.Client("p", c.dial), c.server.Server("p", func(error) {}))
			if c.ok {
				require.NoError(t, errors.Join(clientErr, serverErr))
			} else {
				require.Error(t, errors.Join(clientErr, serverErr))
				require.Error(t, clientErr, "the dialer never takes a stranger for a member")
			}
		})
	}
}

func TestStrangerIsReported(t *testing.T) {
	var seen error
	stranger := make1(t, "c", "a", two).Client("p", "")
	server := make1(t, "c", "b", one)
	_, err := meet(stranger, server.Server("p", func(err error) { seen = err }))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorIs(t, seen, ErrRefused)

	stranger.ServerName = server.tags[0] // overheard on the wire: it opens nothing
	stranger.VerifyConnection = nil
	seen = nil
	_, err = meet(stranger, server.Server("p", func(err error) { seen = err }))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorIs(t, seen, ErrRefused)
}

func TestClientWithoutCertificateIsRefused(t *testing.T) {
	naked := make1(t, "c", "a", one).Client("p", "")
	naked.Certificates = nil
	_, err := meet(naked, make1(t, "c", "b", one).Server("p", func(error) {}))
	require.Error(t, err)
}

func TestOldTLSAndOtherProtocolsAreRefused(t *testing.T) {
	old := make1(t, "c", "a", one).Client("p", "")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	clientErr, _ := meet(old, make1(t, "c", "b", one).Server("p", func(error) {}))
	require.Error(t, clientErr)
	other := make1(t, "c", "a", one).Client("q", "")
	clientErr, _ = meet(other, make1(t, "c", "b", one).Server("p", func(error) {}))
	require.Error(t, clientErr)
}

func TestCertificateNamesItsNode(t *testing.T) {
	i := make1(t, "c", "a-1.x_y", one)
	n, err := i.Of(i.leaf.Leaf)
	require.NoError(t, err)
	require.Equal(t, Node{"a-1.x_y", 7}, n)
}

func TestOddCertificatesAreRefused(t *testing.T) {
	i := make1(t, "c", "b", one)
	ca, err := newAuthority("c", one)
	require.NoError(t, err)
	for _, uris := range [][]string{
		nil,
		{"http://c/node/a?boot=1"},
		{"clatter://c/node/a?boot=1", "clatter://c/node/b?boot=1"},
		{"clatter://d/node/a?boot=1"},
		{"clatter://c/nodes/a?boot=1"},
		{"clatter://c/node/?boot=1"},
		{"clatter://c/node/a"},
		{"clatter://c/node/a?boot=-1"},
		{"clatter://c/node/a?boot=99999999999999999999"},
	} {
		_, err := i.Of(odd(t, ca, uris))
		require.ErrorIs(t, err, ErrRefused, uris)
	}
}

// odd is a certificate signed by ca with any URIs.
func odd(t *testing.T, ca *authority, uris []string) *x509.Certificate {
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: first, NotAfter: last}
	for _, s := range uris {
		u, err := url.Parse(s)
		require.NoError(t, err)
		template.URIs = append(template.URIs, u)
	}
	cert, err := sign(template, ca.cert, pub, ca.key)
	require.NoError(t, err)
	return cert
}

func TestAuthorityIsTheSameOnEveryNode(t *testing.T) {
	a, err := newAuthority("c", one)
	require.NoError(t, err)
	b, err := newAuthority("c", one)
	require.NoError(t, err)
	require.Equal(t, a.cert.Raw, b.cert.Raw)
	c, err := newAuthority("d", one)
	require.NoError(t, err)
	require.NotEqual(t, a.cert.Raw, c.cert.Raw)
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := New("c", Node{"a", 1}, [][]byte{one}); err != nil {
			b.Fatal(err)
		}
	}
}
