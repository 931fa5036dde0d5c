package session

import (
	"time"

	"golang.org/x/sys/unix"
)

// suspended returns for how long the machine has been suspended since it started:
// the clock that counts suspend minus the one that does not. Both are read past
// package time, so that inside a testing/synctest bubble fake time stays in charge.
func suspended() time.Duration {
	var with, without unix.Timespec
	// In this order a pause between the two reads makes the sum a later moment, but
	// none that has not come yet; in the other one the owner would believe longer.
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &without) != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &with) != nil {
		return 0
	}
	d := time.Duration(with.Nano() - without.Nano())
	return d.Truncate(10 * time.Millisecond) // the two reads are not at one instant
}
