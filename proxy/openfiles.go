package proxy

import (
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"
)

// errOpenFiles says that there is no room for another listener under the limit on
// open files.
var errOpenFiles = errors.New("the limit on open files has no room for another listener")

// maxListeners returns how many descriptors listeners may take: a quarter stays
// for connections, without which listeners are of no use.
func (c *connections) maxListeners() int64 {
	return max(1, (c.descriptors-c.reserved())*3/4)
}

// room returns an error if there is no room for another listener.
func (c *connections) room() error {
	if c.listeners.Load() < c.maxListeners() {
		return nil
	}
	return fmt.Errorf("%w: of %d, %d may be listeners", errOpenFiles, c.descriptors, c.maxListeners())
}

// reportOpenFiles says once how many service ports the limit cannot hold, when
// there are such, when there are more, and when there are none any more.
func (p *Proxy) reportOpenFiles() {
	left := 0
	for _, problem := range p.problems {
		if errors.Is(problem.Err, errOpenFiles) {
			left++
		}
	}
	before := p.leftOut
	p.leftOut = left
	switch {
	case left > before:
		c := &p.connections
		share := (c.listeners.Load()+int64(left))*4/3 + 1
		needed := min(share+mostReserved, share*4/3+1)
		p.Log.WithFields(logrus.Fields{"limit": c.descriptors, "listeners": c.listeners.Load(), "not-served": left, "needed": needed}).
			Errorf("The limit of %d open files cannot hold all service ports: %d are not served, and their clients are refused. Raise it to %d or more (ulimit -n, LimitNOFILE=)", c.descriptors, left, needed)
	case left == 0 && before > 0:
		p.Log.Info("The limit on open files holds all service ports now")
	}
}
