package sim

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/cryptotest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"

	"github.com/clatter-go/clatter/internal/replica"
)

var (
	seeds = flag.Int("sim.seeds", 200, "how many seeds to run")
	first = flag.Uint64("sim.seed", 0, "the first seed; with -sim.seeds=1 -v its trace is written to standard output")
	steps = flag.Int("sim.steps", 6000, "events of each seed before the faults end")
)

func run(t *testing.T, seed uint64, m mutant, trace io.Writer) Report {
	return runs(t, Config{Seed: seed, Steps: *steps, Trace: trace, mutant: m})
}

func runs(t *testing.T, cfg Config) Report {
	cryptotest.SetGlobalRandom(t, cfg.Seed)
	cfg.Logger = replica.NewLogger(nil, &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)})
	return Run(cfg)
}

func TestNoSeedBreaksAPromise(t *testing.T) {
	var trace io.Writer
	if *seeds == 1 && testing.Verbose() {
		trace = os.Stdout
	}
	var sum Stats
	for i := range uint64(*seeds) {
		r := run(t, *first+i, sound, trace)
		require.NoError(t, r.Err, "again with: go test ./internal/sim -run %s -v -sim.seeds=1 -sim.seed=%d -sim.steps=%d", t.Name(), r.Seed, *steps)
		sum.add(&r.Stats)
	}
	t.Logf("%+v", sum)
	if *seeds < 100 {
		return
	}
	// A run that does nothing breaks nothing: these are far below what 100 seeds do.
	for what, n := range map[string]int{
		"terms": sum.Terms - sum.Nodes, "crashes": sum.Crashes, "losses of power": sum.PowerLosses, "pauses": sum.Pauses, "cuts": sum.Cuts,
		"grants": sum.Grants, "lost sessions": sum.Losses, "expired sessions": sum.Expired, "swaps": sum.Swaps, "tasks": sum.Finished,
		"refused zombies": sum.Refused, "unknown outcomes": sum.Unknown,
	} {
		require.Greater(t, n, 30, what)
	}
}

func TestHoldersAtTheLimitsOfTheirClocksNeverOverlap(t *testing.T) {
	for seed := range uint64(*seeds) / 4 {
		require.NoError(t, runs(t, Config{Seed: *first + seed, Steps: *steps, narrow: true}).Err)
	}
}

func TestASeedRepeatsBitForBit(t *testing.T) {
	if os.Getenv("SIM_PRINT") != "" {
		fmt.Printf("hash %x\n", run(t, *first, sound, nil).Hash)
		return
	}
	for seed := range uint64(3) {
		one := run(t, *first+seed, sound, nil)
		require.Equal(t, one, run(t, *first+seed, sound, nil))
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", fmt.Sprint("-sim.seed=", *first+seed), fmt.Sprint("-sim.steps=", *steps))
		cmd.Env = append(os.Environ(), "SIM_PRINT=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.True(t, strings.Contains(string(out), fmt.Sprintf("hash %x\n", one.Hash)), "%s", out)
	}
}

func (s *Stats) add(o *Stats) {
	for _, p := range []struct{ to, from *int }{
		{&s.Steps, &o.Steps}, {&s.Nodes, &o.Nodes}, {&s.Entries, &o.Entries}, {&s.Terms, &o.Terms},
		{&s.Crashes, &o.Crashes}, {&s.PowerLosses, &o.PowerLosses}, {&s.Pauses, &o.Pauses}, {&s.Cuts, &o.Cuts},
		{&s.Answers, &o.Answers}, {&s.Retries, &o.Retries}, {&s.Unknown, &o.Unknown},
		{&s.Grants, &o.Grants}, {&s.Losses, &o.Losses}, {&s.Expired, &o.Expired}, {&s.Reads, &o.Reads},
		{&s.Submitted, &o.Submitted}, {&s.Finished, &o.Finished}, {&s.Refused, &o.Refused}, {&s.Swaps, &o.Swaps},
	} {
		*p.to += *p.from
	}
}

// mutantNames is the list of the ways to break the system that must be noticed.
var mutantNames = map[mutant]string{
	ackBeforeSync: "responses leave before the fsync", staleNow: "the stamp is read before draining",
	expireUnchecked: "expiry is not checked again at apply", renewInMemory: "a renewal is answered from memory",
	noDedup: "a repeated command has a new sequence", beliefFromAnswer: "belief counts from the answer",
	beliefFromLastSend: "belief counts from the latest send", believeUntilReleased: "belief ends with the answer to the release",
	readLocally: "reads are not confirmed", alterEntry: "one replica applies another entry", forgetSnapshot: "a restart forgets the snapshot",
}

func TestEveryMutantIsCaught(t *testing.T) {
	for m := sound + 1; m < mutants; m++ {
		t.Run(mutantNames[m], func(t *testing.T) {
			// An overlap of beliefs needs a bad clock, a late answer and a cut in the
			// right moment: these seeds look for nothing else.
			narrow := m == staleNow || m == beliefFromAnswer || m == beliefFromLastSend
			for seed := range uint64(*seeds) {
				if r := runs(t, Config{Seed: seed, Steps: *steps, mutant: m, narrow: narrow}); r.Err != nil {
					t.Log(r.Err)
					return
				}
			}
			require.Fail(t, "not caught", "%d seeds", *seeds)
		})
	}
}
