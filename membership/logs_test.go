package membership

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLinesOfMemberlistBecomeRecords(t *testing.T) {
	for in, want := range map[string]line{
		"[ERR] memberlist: Failed to send: x\n": {level: slog.LevelWarn, text: "Failed to send: x"},
		"[WARN] memberlist: [odd] text":         {level: slog.LevelWarn, text: "[odd] text"},
		"[INFO] memberlist: Suspect a":          {level: slog.LevelInfo, text: "Suspect a"},
		"[DEBUG] memberlist: y":                 {level: slog.LevelDebug, text: "y"},
		"no level":                              {level: slog.LevelInfo, text: "no level"},
		"[WARN] memberlist: Binding to public address without encryption!": {level: slog.LevelWarn},
	} {
		got := parseLine(in)
		require.Equal(t, want.level, got.level, in)
		require.Equal(t, want.text, got.text, in)
	}
}

func TestRepeatedLinesAreHeldBackForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newLogs(slog.New(slog.NewTextHandler(&out, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.run(ctx)
		flood := func() int {
			out.Reset()
			for i := range 100 {
				fmt.Fprintf(l, "[WARN] memberlist: Failed ping: n%d", i)
			}
			fmt.Fprint(l, "[DEBUG] memberlist: not enabled")
			synctest.Wait()
			return strings.Count(out.String(), "\n")
		}
		require.Equal(t, logRepeat, flood())
		require.Contains(t, out.String(), "held back")
		fmt.Fprint(l, "[WARN] memberlist: Something else")
		synctest.Wait()
		require.Contains(t, out.String(), "Something else")
		require.Zero(t, flood())
		time.Sleep(time.Minute)
		require.Equal(t, logRepeat, flood())
	})
}

func TestAFullLogQueueNeitherBlocksNorHides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := newLogs(slog.New(slog.NewTextHandler(&out, nil)))
		for i := range logQueue + 5 {
			fmt.Fprintf(l, "[WARN] memberlist: line%d", i)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go l.run(ctx)
		synctest.Wait()
		require.Contains(t, out.String(), "lines_lost=5")
	})
}
