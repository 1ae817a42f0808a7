package proxy

import (
	"errors"

	"github.com/sirupsen/logrus"
)

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
		b := &p.budget
		share := (b.listeners.Load()+int64(left))*4/3 + 1
		needed := min(share+mostReserved, share*4/3+1)
		p.Log.WithFields(logrus.Fields{"limit": b.descriptors, "listeners": b.listeners.Load(), "not-served": left, "needed": needed}).
			Errorf("The limit of %d open files cannot hold all service ports: %d are not served, and their clients are refused. Raise it to %d or more (ulimit -n, LimitNOFILE=)", b.descriptors, left, needed)
	case left == 0 && before > 0:
		p.Log.Info("The limit on open files holds all service ports now")
	}
}
