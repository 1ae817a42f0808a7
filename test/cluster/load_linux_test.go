package cluster

import (
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// load is a set of clients that connect at a steady rate.
type load struct {
	exchange func() error
	end      chan struct{}
	all      sync.WaitGroup

	mu       sync.Mutex
	begun    int
	done     int
	failures []string
}

// startLoad makes perSecond connections until stop. Each sends a request and waits for the answer.
func startLoad(d *lab.Dialer, vip string, perSecond int) *load {
	return startExchanges(perSecond, func() error { return exchange(d, vip) })
}

// startExchanges calls exchange perSecond times a second until stop.
func startExchanges(perSecond int, exchange func() error) *load {
	l := &load{exchange: exchange, end: make(chan struct{})}
	l.all.Go(func() {
		ticker := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		for {
			select {
			case <-l.end:
				return
			case <-ticker.C:
				l.all.Go(l.connection)
			}
		}
	})
	DeferCleanup(func() { l.stop() })
	return l
}

func (l *load) connection() {
	began := time.Now()
	l.mu.Lock()
	l.begun++
	l.mu.Unlock()
	err := l.exchange()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done++
	if err != nil {
		l.failures = append(l.failures, fmt.Sprintf("%s, after %s: %v", began.Format("15:04:05.000"), time.Since(began), err))
	}
}

func exchange(d *lab.Dialer, vip string) error {
	c, err := d.Dial("", vip, 30*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	name, err := readNameWithin(c, 30*time.Second) // a client may wait in the backlog until usher is restarted
	if err != nil {
		return err
	}
	return (&connection{c, name}).works()
}

// count returns the number of connections so far.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done
}

// started is count with the connections that are under way.
func (l *load) started() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun
}

// more waits for n further connections.
func (l *load) more(n int) {
	GinkgoHelper()
	want := l.count() + n
	Eventually(l.count).WithTimeout(30 * time.Second).Should(BeNumerically(">=", want))
}

// stop ends the load and returns the failures.
func (l *load) stop() []string {
	select {
	case <-l.end:
	default:
		close(l.end)
	}
	l.all.Wait()
	return l.failures
}
