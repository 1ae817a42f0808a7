package proxy

import (
	"math/rand/v2"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/forward"
)

// limits returns how long the connections of a service port may last.
func (o *Options) limits(port config.ServicePort) *forward.Limits {
	l := &forward.Limits{HalfClosed: o.HalfClosed, Idle: o.IdleTimeout, Age: o.MaxAge}
	if port.IdleTimeout > 0 {
		l.Idle = port.IdleTimeout
	}
	if port.MaxAge > 0 {
		l.Age = port.MaxAge
	}
	return l
}

// A connection may lack an ageJitter-th part of its maximum age: those that were
// opened at the same time shall not all come back at the same time.
const ageJitter = 10

// limits returns how long the connection may last.
func (c *connection) limits() *forward.Limits {
	shared := c.front.view.Load().limits
	if shared.Age == 0 {
		return shared
	}
	own := *shared
	own.Age -= rand.N(1 + own.Age/ageJitter)
	return &own
}
