package membership

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Discoverer finds addresses of nodes by means of its own: a cloud's API, a database.
// An empty answer without an error means that nobody was found yet. It is asked again
// and again, one call at a time; an answer later than 3 s, when ctx ends, is an error.
// Its own node's address may be among the answers.
type Discoverer interface {
	Discover(ctx context.Context) ([]netip.AddrPort, error)
}

const (
	askTimeout = 3 * time.Second
	keepAnswer = 5 * time.Minute // a good answer stands in for errors this long
	maxSeeds   = 1024            // addresses that one source may name
)

// source is a Discoverer with its last good answer: a name server that is down for a
// moment must not make the seeds disappear.
type source struct {
	name string // for the log
	from Discoverer
	last []netip.AddrPort
	at   time.Time
}

// ask returns the present answer or, when there is only an error, the last good one
// with it. An answer may be in part: addresses and an error.
func (s *source) ask(ctx context.Context) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	found, err := discover(ctx, s.from)
	switch {
	case err == nil || len(found) > 0:
		s.last, s.at = found[:min(len(found), maxSeeds)], time.Now()
	case time.Since(s.at) > keepAnswer:
		s.last = nil
	}
	if err != nil {
		err = fmt.Errorf("discover by %s: %w", s.name, err)
	}
	return s.last, err
}

// discover makes a panic of the user's code an error: it runs on our goroutine.
func discover(ctx context.Context, d Discoverer) (found []netip.AddrPort, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return d.Discover(ctx)
}

// askAll asks all sources at once. The addresses come sorted, each once; those that
// this node cannot dial are left out: see usable.
func askAll(ctx context.Context, sources []*source, own netip.AddrPort) ([]netip.AddrPort, error) {
	answers := make([][]netip.AddrPort, len(sources))
	errs := make([]error, len(sources))
	var wg sync.WaitGroup
	for i, s := range sources {
		wg.Go(func() { answers[i], errs[i] = s.ask(ctx) })
	}
	wg.Wait()
	var all []netip.AddrPort
	for _, a := range slices.Concat(answers...) {
		if a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port()); usable(a, own) {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all), errors.Join(errs...)
}

// usable says whether a can be a node of our cluster. A cluster speaks one IP version,
// because gossip carries one address a node: "localhost" must not count as two seeds.
func usable(a, own netip.AddrPort) bool {
	return a.IsValid() && a.Port() != 0 && a.Addr().Zone() == "" && !a.Addr().IsUnspecified() &&
		!a.Addr().IsMulticast() && a.Addr().Is4() == own.Addr().Is4()
}

// CheckSeed tells whether join is one of the forms of Config.Join. It looks at the
// text only: nothing is resolved.
func CheckSeed(join string) error {
	if _, err := sourceOf(join); err != nil {
		return fmt.Errorf("seed %q: %w", join, err)
	}
	return nil
}

// sourceOf reads one form of Config.Join.
func sourceOf(join string) (Discoverer, error) {
	scheme, rest, some := strings.Cut(join, "://")
	if !some {
		return hostOf(join)
	}
	switch scheme {
	case "dns":
		return hostOf(rest)
	case "srv":
		if rest == "" {
			return nil, errors.New("want srv://_service._udp.name")
		}
		return srv(rest), nil
	case "file":
		if !filepath.IsAbs(rest) {
			return nil, errors.New("want file:///absolute/path")
		}
		return file(rest), nil
	}
	return nil, errors.New("want host:port, dns://name:port, srv://_service._udp.name or file:///path")
}

// host is "host:port" and "dns://name:port": every address that the name has now.
type host struct {
	name string
	port uint16
}

func hostOf(s string) (Discoverer, error) {
	name, p, err := net.SplitHostPort(s)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil || port == 0 || name == "" {
		return nil, fmt.Errorf("%q: want a host and a port from 1 to 65535", s)
	}
	return host{name, uint16(port)}, nil
}

// Discover resolves the name on every call, because pods move.
func (h host) Discover(ctx context.Context) ([]netip.AddrPort, error) {
	if a, err := netip.ParseAddr(h.name); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(a, h.port)}, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h.name)
	if gone, ok := errors.AsType[*net.DNSError](err); ok && gone.IsNotFound {
		return nil, nil // a headless service without ready pods has no name
	}
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a, h.port))
	}
	return out, err
}

// srv is "srv://_service._udp.name": the targets of its SRV records (RFC 2782).
// Priority and weight mean nothing to a node that wants to meet all.
type srv string

func (s srv) Discover(ctx context.Context) ([]netip.AddrPort, error) {
	_, records, err := net.DefaultResolver.LookupSRV(ctx, "", "", string(s))
	if gone, ok := errors.AsType[*net.DNSError](err); ok && gone.IsNotFound {
		return nil, nil
	}
	var out []netip.AddrPort
	for _, r := range records {
		found, e := host{r.Target, r.Port}.Discover(ctx)
		out, err = append(out, found...), errors.Join(err, e)
	}
	return out, err
}

// file is "file:///path": one host:port a line, "#" starts a comment. It is read on
// every call. A missing file means that nobody has written it yet.
type file string

func (f file) Discover(ctx context.Context) ([]netip.AddrPort, error) {
	in, err := os.Open(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var out []netip.AddrPort
	lines := bufio.NewScanner(io.LimitReader(in, 1<<20))
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		h, e := hostOf(text)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		found, e := h.Discover(ctx)
		out, err = append(out, found...), errors.Join(err, e)
	}
	return out, errors.Join(err, lines.Err())
}
