package election_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/election"
)

func TestRunEndsWithTheSessionItWasGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 1)
		n := c.Node(0)
		s, err := n.Session(t.Context(), 3*time.Second)
		require.NoError(t, err)
		leads := func(ctx context.Context, l *election.Leadership) error {
			go func() { _ = s.Close(t.Context()) }()
			<-ctx.Done()
			return context.Cause(ctx)
		}
		require.ErrorIs(t, n.Election("e").Run(t.Context(), leads, election.WithSession(s)), consensus.ErrClosed)
		err = n.Election("e").Run(t.Context(), leads, election.WithSession(s))
		require.ErrorIs(t, err, consensus.ErrClosed, "not over and over")
	})
}

func TestAPanicOfWhoLeadsIsReturnedAfterResigning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := cluster(t, 1).Node(0).Election("e")
		err := e.Run(t.Context(), func(context.Context, *election.Leadership) error { panic("boom") })
		require.ErrorContains(t, err, "boom")
		_, err = e.Leader(t.Context())
		require.ErrorIs(t, err, election.ErrNoLeader)
	})
}

func TestBadElectionsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	_, err := election.New(nil, "a\nb").Campaign(t.Context(), nil) // a keeper would be needed to send
	require.ErrorIs(t, err, consensus.ErrInvalid)
	_, err = election.New(nil, "e").Campaign(t.Context(), []byte(strings.Repeat("v", 64<<10+1)))
	require.ErrorIs(t, err, consensus.ErrInvalid)
	_, err = election.New(nil, "").Leader(t.Context())
	require.ErrorIs(t, err, consensus.ErrInvalid)
	require.ErrorIs(t, election.New(nil, "").Run(t.Context(), nil), consensus.ErrInvalid)
}
