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
	cryptotest.SetGlobalRandom(t, seed)
	quiet := replica.NewLogger(nil, &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)})
	return Run(Config{Seed: seed, Steps: *steps, Trace: trace, Logger: quiet, mutant: m})
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
			for seed := range uint64(*seeds) {
				if r := run(t, seed, m, nil); r.Err != nil {
					t.Log(r.Err)
					return
				}
			}
			require.Fail(t, "not caught", "%d seeds", *seeds)
		})
	}
}
