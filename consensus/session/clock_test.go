package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheOwnersClockFollowsFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Keeper{base: time.Now()}
		before := k.now()
		time.Sleep(time.Hour)
		require.InDelta(t, float64(time.Hour), float64(k.now()-before), float64(time.Second), "suspend of the machine that runs the test would add to it")
	})
}
