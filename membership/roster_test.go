package membership

import (
	"bufio"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var rewrite = flag.Bool("rewrite", false, "write the golden scripts instead of comparing with them")

// TestRosterTellsTheStoryOfNames runs testdata/roster/*.txt. A line "> ..." is a step,
// the lines below it are the events that it gave:
//
//	up NAME#BOOT [leaving] [voter] [zone=Z]    gossip says so
//	down NAME#BOOT [leaving]
//	clash NAME#BOOT
//	farewell NAME#BOOT
//	wait DURATION                              and sweep
//	list                                       the members
func TestRosterTellsTheStoryOfNames(t *testing.T) {
	files, err := filepath.Glob("testdata/roster/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(f)
			require.NoError(t, err)
			got := play(t, string(want))
			if *rewrite {
				require.NoError(t, os.WriteFile(f, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got)
		})
	}
}

func play(t *testing.T, script string) string {
	var out strings.Builder
	now := time.Unix(0, 0)
	r := newRoster("me", 5, netip.MustParseAddrPort("10.0.0.9:1"), meta{}, now)
	for lines := bufio.NewScanner(strings.NewReader(script)); lines.Scan(); {
		text := lines.Text()
		if !strings.HasPrefix(text, "> ") {
			if text == "" || strings.HasPrefix(text, "#") {
				fmt.Fprintln(&out, text)
			}
			continue
		}
		fmt.Fprintln(&out, text)
		step := strings.Fields(text[2:])
		switch step[0] {
		case "up":
			show(&out, r.apply(parseSight(t, step), now))
		case "down":
			show(&out, r.apply(parseSight(t, step), now))
		case "clash":
			show(&out, r.clash(parseSight(t, step), now))
		case "farewell":
			show(&out, r.farewell(parseSight(t, step).incarnation, now))
		case "wait":
			d, err := time.ParseDuration(step[1])
			require.NoError(t, err)
			now = now.Add(d)
			r.forget(now)
			show(&out, r.conflicts(now, time.Minute))
		case "list":
			for _, e := range r.sorted() {
				fmt.Fprintf(&out, "  %s#%d %v\n", e.name, e.boot, e.state)
			}
		default:
			require.Fail(t, "unknown step", text)
		}
	}
	return out.String()
}

func show(out *strings.Builder, events []Event) {
	for _, e := range events {
		fmt.Fprintf(out, "  %v %s#%d %v", e.Kind, e.Member.Name, e.Member.Boot, e.Member.State)
		if e.Member.Voter {
			out.WriteString(" voter")
		}
		if e.Member.Zone != "" {
			out.WriteString(" zone=" + e.Member.Zone)
		}
		out.WriteString("\n")
	}
}

func parseSight(t *testing.T, step []string) sight {
	name, b, _ := strings.Cut(step[1], "#")
	boot, err := strconv.ParseUint(b, 10, 64)
	require.NoError(t, err)
	s := sight{incarnation: incarnation{name, boot}, up: step[0] != "down", addr: netip.MustParseAddrPort("10.0.0.1:1")}
	for _, word := range step[2:] {
		switch {
		case word == "leaving":
			s.meta.leaving = true
		case word == "voter":
			s.meta.note.Voter = true
		default:
			s.meta.zone = strings.TrimPrefix(word, "zone=")
		}
	}
	return s
}

// alternation checks M1 for one watcher: a name comes and goes by turns.
type alternation map[string]bool

func (a alternation) see(e Event) error {
	name := e.Member.Name
	switch here := a[name]; e.Kind {
	case Joined:
		if here {
			return fmt.Errorf("%s joined twice", name)
		}
		a[name] = true
	case Left, Failed:
		if !here {
			return fmt.Errorf("%s went without having come", name)
		}
		a[name] = false
	case Restarted, Updated, Leaving:
		if !here {
			return fmt.Errorf("%s %v while gone", name, e.Kind)
		}
	}
	return nil
}

// sights draws words of gossip about few enough incarnations that they meet.
func sights() *rapid.Generator[sight] {
	return rapid.Custom(func(t *rapid.T) sight {
		s := sight{
			incarnation: incarnation{rapid.SampledFrom([]string{"n0", "n1", "n2", "n3"}).Draw(t, "name"),
				rapid.Uint64Range(1, 3).Draw(t, "boot")},
			up:   rapid.Bool().Draw(t, "up"),
			meta: meta{leaving: rapid.Bool().Draw(t, "leaving"), zone: rapid.SampledFrom([]string{"", "z"}).Draw(t, "zone")},
		}
		return s
	})
}

// TestComingAndGoingAlternateForEveryWatcher feeds arbitrary gossip to a roster and
// lets watchers read at arbitrary moments, also so rarely that they miss events (M1).
func TestComingAndGoingAlternateForEveryWatcher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		r := newRoster("n0", 2, netip.MustParseAddrPort("10.0.0.9:1"), meta{}, now)
		f := &feed{}
		watchers := []*watcher{{told: map[string]Member{}}, {told: map[string]Member{}}}
		seen := []alternation{{}, {}}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			burst := rapid.SliceOfN(sights(), 1, 8).Draw(t, "burst")
			times := rapid.SampledFrom([]int{1, 1, 1, 2 * maxFeed}).Draw(t, "times")
			for range times {
				for _, s := range burst {
					now = now.Add(time.Second)
					f.append(r.apply(s, now)...)
				}
			}
			for i, w := range watchers {
				if i > 0 && !rapid.Bool().Draw(t, "reads") {
					continue
				}
				for _, e := range w.read(f, r) {
					w.tell(e)
					require.NoError(t, seen[i].see(e))
				}
				for _, e := range r.sorted() {
					require.Equal(t, e.state.present(), seen[i][e.name], "%s is %v", e.name, e.state)
				}
			}
		}
	})
}

func TestRosterKeepsABoundedMemoryOfTheGone(t *testing.T) {
	now := time.Unix(0, 0)
	r := newRoster("me", 1, netip.AddrPort{}, meta{}, now)
	for i := range 3 * maxGone {
		s := sight{incarnation: incarnation{fmt.Sprintf("n%04d", i), 1}, up: true, meta: meta{leaving: i%2 == 0}}
		r.apply(s, now)
		s.up = false
		r.apply(s, now)
		now = now.Add(time.Second)
	}
	require.Len(t, r.members, 1+maxGone)
	for _, e := range r.members {
		require.NotEqual(t, StateLeft, e.state, "who left is forgotten before who failed")
	}
	r.forget(now.Add(keepGone))
	require.Len(t, r.members, 1)
}

func TestLostMembersAreCalledOnInTurn(t *testing.T) {
	now := time.Unix(0, 0)
	r := newRoster("me", 1, netip.AddrPort{}, meta{}, now)
	for i := range 3 {
		s := sight{incarnation: incarnation{fmt.Sprint("n", i), 1}, up: true, addr: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(i))}
		r.apply(s, now)
		s.up = false
		r.apply(s, now)
	}
	var ports []uint16
	for range 6 {
		now = now.Add(time.Second)
		a, some := r.lost(now)
		require.True(t, some)
		ports = append(ports, a.Port())
	}
	require.Equal(t, []uint16{0, 1, 2, 0, 1, 2}, ports)
}

func TestSlowWatcherIsToldToResync(t *testing.T) {
	r := newRoster("me", 1, netip.AddrPort{}, meta{}, time.Time{})
	f, w := &feed{}, &watcher{told: map[string]Member{}}
	kinds := func() (out []Kind) {
		for _, e := range w.read(f, r) {
			w.tell(e)
			out = append(out, e.Kind)
		}
		return out
	}
	require.Equal(t, []Kind{Joined, Synced}, kinds())
	up := sight{incarnation: incarnation{"a", 1}, up: true}
	down := sight{incarnation: incarnation{"a", 1}}
	for range 2 * maxFeed {
		f.append(r.apply(up, time.Time{})...)
		f.append(r.apply(down, time.Time{})...)
	}
	f.append(r.apply(up, time.Time{})...)
	require.Equal(t, []Kind{Resync, Joined, Synced}, kinds())
	require.Empty(t, kinds())
	require.LessOrEqual(t, len(f.events), 2*maxFeed)
}
