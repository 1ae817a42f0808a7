package scale

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/usherproxy/usher/test/lab"
)

// startBackends starts servers on all Pod addresses that send back four bytes.
func startBackends(pods *lab.Namespace) {
	GinkgoHelper()
	l := pods.Listen(fmt.Sprintf("0.0.0.0:%d", backendPort))
	lab.Serve(l, func(c net.Conn) {
		buf := make([]byte, 4)
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return
			}
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	})
}

// pingPong sends a request and waits for the answer.
func pingPong(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("ping")); err != nil {
		return fmt.Errorf("asking: %w", err)
	}
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		return fmt.Errorf("waiting for the answer: %w", err)
	}
	return nil
}

// connectAndAsk makes a connection with one request and response.
func connectAndAsk(d *lab.Dialer, vip string, patience time.Duration) error {
	c, err := d.Dial("", vip, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	return pingPong(c)
}

// rate returns the number of connections per second of some clients, each of which makes its connections one by one.
func rate(d *lab.Dialer, clients int, vip string, lasts time.Duration) (perSecond float64, failed error) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	made := 0
	began := time.Now()
	for range clients {
		workers.Go(func() {
			for time.Since(began) < lasts {
				err := connectAndAsk(d, vip, patience)
				mu.Lock()
				if time.Since(began) < lasts { // one SYN that is retransmitted would otherwise lengthen the measurement
					made++
				}
				if failed == nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return float64(made) / lasts.Seconds(), failed
}

// load is a set of clients that make connections at a steady rate.
type load struct {
	stop    func()
	stopped chan struct{}
	workers sync.WaitGroup

	mu     sync.Mutex
	made   int
	failed []failure
}

// failure describes a failed connection.
type failure struct {
	began, ended time.Time
	err          error
}

func (f failure) String() string {
	return fmt.Sprintf("begun %s, failed after %s: %v", f.began.Format("15:04:05.000"), f.ended.Sub(f.began).Round(time.Millisecond), f.err)
}

// loadClients is the number of threads that make connections: enough that some can wait for their timeout while the
// others continue.
const loadClients = 100

// startLoad starts the load. patience is the timeout of each connection. The load ends with the spec, if not before.
func startLoad(d *lab.Dialer, vip string, perSecond int, patience time.Duration) *load {
	GinkgoHelper()
	l := &load{stopped: make(chan struct{})}
	l.stop = sync.OnceFunc(func() {
		close(l.stopped)
		l.workers.Wait()
	})
	DeferCleanup(l.stop)
	for i := range loadClients {
		l.workers.Go(func() {
			interval := loadClients * time.Second / time.Duration(perSecond)
			next := time.NewTimer(interval * time.Duration(i) / loadClients)
			defer next.Stop()
			for {
				select {
				case <-l.stopped:
					return
				case <-next.C:
				}
				next.Reset(interval)
				began := time.Now()
				l.took(began, connectAndAsk(d, vip, patience))
			}
		})
	}
	return l
}

func (l *load) took(began time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	if err != nil {
		l.failed = append(l.failed, failure{began, time.Now(), err})
	}
}

// count returns the number of connections so far.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made
}

// end ends the load and returns the number of connections and the failures.
func (l *load) end() (made int, failed []failure) {
	l.stop()
	return l.made, l.failed
}
