package membership

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// found is a Discoverer made of a function.
type found func() ([]netip.AddrPort, error)

func (f found) Discover(context.Context) ([]netip.AddrPort, error) { return f() }

func addrs(list ...string) (out []netip.AddrPort) {
	for _, s := range list {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

var own = netip.MustParseAddrPort("10.0.0.9:7000")

func ask(t *testing.T, d Discoverer) ([]netip.AddrPort, error) {
	t.Helper()
	return askAll(t.Context(), []*source{{name: "test", from: d}}, own)
}

func TestEveryFormOfJoinIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seeds")
	require.NoError(t, os.WriteFile(path, []byte("# two\n10.0.0.1:7000\n\n 10.0.0.2:7001 # second\n"), 0o600))
	for join, want := range map[string][]netip.AddrPort{
		"10.0.0.1:7000":       addrs("10.0.0.1:7000"),
		"dns://10.0.0.1:7000": addrs("10.0.0.1:7000"),
		"file://" + path:      addrs("10.0.0.1:7000", "10.0.0.2:7001"),
		"file:///not/there":   nil,
	} {
		d, err := sourceOf(join)
		require.NoError(t, err, join)
		got, err := ask(t, d)
		require.NoError(t, err, join)
		require.Equal(t, want, got, join)
	}
	d, err := sourceOf("srv://_clatter._udp.example.org")
	require.NoError(t, err)
	require.Equal(t, srv("_clatter._udp.example.org"), d)
}

func TestNamesOfTheHostsFileResolve(t *testing.T) {
	d, err := sourceOf("localhost:7000")
	require.NoError(t, err)
	got, err := ask(t, d)
	require.NoError(t, err)
	require.Equal(t, addrs("127.0.0.1:7000"), got, "one address, of the IP version that this node speaks")
}

func TestWrongFormsOfJoinAreNamedAllAtOnce(t *testing.T) {
	c := Config{
		Join:   []string{"nowhere", ":7000", "10.0.0.1:0", "10.0.0.1:65536", "lan://", "file://relative", "srv://"},
		Pace:   9,
		Labels: map[string]string{"k": string(make([]byte, 256))},
	}
	_, err := c.check()
	for _, part := range append(c.Join, "Transport is missing", "Pace 9", "Zone, Labels") {
		require.ErrorContains(t, err, part)
	}
}

func TestAFileIsReadAgainEveryTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seeds")
	for _, line := range []string{"10.0.0.1:1", "10.0.0.2:2"} {
		require.NoError(t, os.WriteFile(path, []byte(line), 0o600))
		got, err := ask(t, file(path))
		require.NoError(t, err)
		require.Equal(t, addrs(line), got)
	}
}

func TestOneBadLineDoesNotHideTheOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seeds")
	require.NoError(t, os.WriteFile(path, []byte("nonsense\n10.0.0.1:1\n"), 0o600))
	got, err := ask(t, file(path))
	require.ErrorContains(t, err, "nonsense")
	require.Equal(t, addrs("10.0.0.1:1"), got)
}

func TestAnswersAreSortedAndFreeOfGarbage(t *testing.T) {
	got, err := ask(t, found(func() ([]netip.AddrPort, error) {
		return append(addrs("10.0.0.2:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1", "10.0.0.3:0", "0.0.0.0:1", "224.0.0.1:1",
			"[::1]:1", "[fe80::1%eth0]:1"), netip.AddrPort{}), nil
	}))
	require.NoError(t, err)
	require.Equal(t, addrs("10.0.0.1:1", "10.0.0.2:1"), got)
}

func TestALastGoodAnswerStandsInForErrorsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, fault := addrs("10.0.0.1:1"), error(nil)
		s := []*source{{name: "test", from: found(func() ([]netip.AddrPort, error) { return answer, fault })}}
		_, err := askAll(t.Context(), s, own)
		require.NoError(t, err)
		answer, fault = nil, errors.New("name server is down")
		time.Sleep(keepAnswer)
		got, err := askAll(t.Context(), s, own)
		require.ErrorIs(t, err, fault)
		require.Equal(t, addrs("10.0.0.1:1"), got)
		time.Sleep(time.Second)
		got, _ = askAll(t.Context(), s, own)
		require.Empty(t, got)
	})
}

func TestADiscovererThatPanicsIsAnError(t *testing.T) {
	_, err := ask(t, found(func() ([]netip.AddrPort, error) { panic("oops") }))
	require.ErrorContains(t, err, "oops")
}

func TestADiscovererThatHangsIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, err := askAll(t.Context(), []*source{{name: "test", from: hang{}}}, own)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, askTimeout, time.Since(start))
	})
}

type hang struct{}

func (hang) Discover(ctx context.Context) ([]netip.AddrPort, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
