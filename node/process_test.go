//go:build unix

package node_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// process is one testnode.
type process struct {
	args []string
	bin  string

	mu  sync.Mutex // guards what follows; one command at a time
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (p *process) start(t *testing.T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = exec.Command(p.bin, p.args...)
	var err error
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
}

// kill is kill -9: whoever waits for an answer reads the end of the pipe.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Wait()
}

// ask sends one command. Without an answer nobody knows: the process was killed.
func (p *process) ask(format string, args ...any) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return "fail: nobody reads"
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(line)
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	require.NoError(t, p.cmd.Process.Signal(s))
}

func processes(t *testing.T, n int) []*process {
	bin := filepath.Join(t.TempDir(), "testnode")
	out, err := exec.Command("go", "build", "-o", bin, "./nodetest/testnode").CombinedOutput()
	require.NoError(t, err, "%s", out)
	at := addrs(t, n)
	all := make([]*process, n)
	for i := range all {
		own := append([]string{fmt.Sprint("n", i), t.TempDir(), at[i]}, append(at[:i:i], at[i+1:]...)...)
		all[i] = &process{bin: bin, args: own}
		all[i].start(t)
	}
	t.Cleanup(func() {
		for _, p := range all {
			p.kill()
		}
	})
	return all
}

func token(t *testing.T, answer string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimPrefix(answer, "ok "), 10, 64)
	require.NoError(t, err, answer)
	return n
}

func TestProcessesThatAreKilledLoseNothingAcknowledged(t *testing.T) {
	if testing.Short() {
		t.Skip("five seconds of killing")
	}
	t.Parallel()
	all := processes(t, 3)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range all {
		require.Equal(t, "ok", p.ask("put warm up"))
	}
	var mu sync.Mutex // guards the books
	puts, sure, maybe := map[string]bool{}, int64(0), int64(0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("%d/%d", i, k)
				put, add := p.ask("put %s %d", key, k), p.ask("add c")
				mu.Lock()
				if put == "ok" {
					puts[key] = true
				}
				switch {
				case strings.HasPrefix(add, "ok"):
					sure++
				case add == "unknown":
					maybe++
				}
				mu.Unlock()
				if strings.HasPrefix(put, "fail") {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		time.Sleep(time.Duration(200+rng.IntN(500)) * time.Millisecond)
		victims := all[:1+rng.IntN(3)]
		if rng.IntN(2) == 0 {
			victims = all[rng.IntN(3):][:1]
		}
		for _, p := range victims {
			p.kill()
		}
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		for _, p := range victims {
			p.start(t)
		}
	}
	close(stop)
	wg.Wait()
	require.Positive(t, sure, "nothing was acknowledged, %d unknown", maybe)
	v := int64(token(t, all[0].ask("counter c")))
	require.GreaterOrEqual(t, v, sure)
	require.LessOrEqual(t, v, sure+maybe)
	for key := range puts {
		require.Equal(t, "ok "+strings.SplitN(key, "/", 2)[1], all[rng.IntN(3)].ask("get %s", key))
	}
	t.Logf("%d puts and %d adds acknowledged, %d unknown", len(puts), sure, maybe)

	last := uint64(0)
	for i := range 2 {
		got := token(t, all[i].ask("lock m"))
		if last != 0 {
			require.Equal(t, last+1, got, "tokens are consecutive")
		}
		last = got
		all[i].kill() // with the lock
		all[i].start(t)
	}
}

func TestAStoppedHolderDoesNotBelieveWhenItWakesUp(t *testing.T) {
	t.Parallel() // it waits most of the time
	all := processes(t, 3)
	first := token(t, all[0].ask("lock m"))
	require.Equal(t, "yes", all[0].ask("believe"))
	all[0].signal(t, syscall.SIGSTOP)
	next := make(chan string, 1)
	go func() {
		next <- all[1].ask("lock m") // the session has 3.3 s and a grace
	}()
	require.Equal(t, first+1, token(t, <-next))
	all[0].signal(t, syscall.SIGCONT)
	require.Equal(t, "no", all[0].ask("believe"), "it slept longer than its lease")
	require.Equal(t, "ok", all[0].ask("unlock"))
	require.Equal(t, "yes", all[1].ask("believe"), "the late unlock frees nobody")
	require.Equal(t, "ok", all[1].ask("unlock"))
}
