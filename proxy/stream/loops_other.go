//go:build !linux

package stream

import (
	"time"

	"github.com/usherproxy/usher/proxy/balance"
)

// loops exist on Linux only.
type loops struct{}

func (loops) giveUp()                                   {}
func (loops) retire(map[*balance.State]bool, time.Time) {}
func (loops) stop(*Server)                              {}
