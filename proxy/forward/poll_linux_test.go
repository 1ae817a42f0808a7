package forward

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

type readyFunc func(Readiness)

func (f readyFunc) Ready(r Readiness) { f(r) }

func TestPollerCallsReadyHandlersAndRemovesClosedOnes(t *testing.T) {
	g := NewWithT(t)
	p, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	var pipe [2]int
	g.Expect(unix.Pipe2(pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC)).To(Succeed())
	defer unix.Close(pipe[1])
	rounds := make(chan struct{}, 100)
	read := make(chan byte)
	var watched Registration
	g.Expect(p.Do(func() {
		p.OnRoundEnd(func() { rounds <- struct{}{} })
		watched, err = p.Add(pipe[0], Readable, readyFunc(func(r Readiness) {
			var b [1]byte
			_, _ = unix.Read(pipe[0], b[:])
			read <- b[0]
		}))
	})).To(Succeed())
	for i := range byte(3) {
		g.Expect(unix.Write(pipe[1], []byte{i})).To(Equal(1))
		g.Expect(<-read).To(Equal(i))
		<-rounds
	}
	done := make(chan struct{})
	g.Expect(p.Do(func() { p.CloseFD(watched); close(done) })).To(Succeed())
	<-done
	g.Expect(err).NotTo(HaveOccurred())
	_, err = unix.Write(pipe[1], []byte{1})
	g.Expect(err).To(Equal(unix.EPIPE))
	p.Close()
	g.Expect(p.Do(func() {})).To(MatchError(ErrPollerClosed))
}

func TestPollerRunsTasksInOrder(t *testing.T) {
	g := NewWithT(t)
	p, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	defer p.Close()
	var got []int
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Add(1)
		g.Expect(p.Do(func() { got = append(got, i); wg.Done() })).To(Succeed())
	}
	wg.Wait()
	for i := range 100 {
		g.Expect(got[i]).To(Equal(i))
	}
}

func TestManyTasksDoNotStarveHandlers(t *testing.T) {
	g := NewWithT(t)
	p, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	fd, err := unix.Eventfd(1, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) // always readable
	g.Expect(err).NotTo(HaveOccurred())
	defer unix.Close(fd)
	const tasks = 1000
	done, since, most := 0, 0, 0
	var all sync.WaitGroup
	p.Go(&all, func() {
		_, err = p.Add(fd, Readable, readyFunc(func(Readiness) { since = 0 }))
		for range tasks {
			p.Go(&all, func() {
				done, since = done+1, since+1
				most = max(most, since)
			})
		}
	})
	all.Wait()
	p.Close() // the loop has ended, so its variables can be read
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(done).To(Equal(tasks))
	g.Expect(most).To(BeNumerically("<=", 2*tasksPerRound))
}

// TestTurnsDoNotDelayManyTasks has the turns of a stream that never pauses.
func TestTurnsDoNotDelayManyTasks(t *testing.T) {
	g := NewWithT(t)
	p, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	const tasks = 1000
	rounds, done := 0, 0
	var all sync.WaitGroup
	p.Go(&all, func() {
		p.OnRoundEnd(func() { rounds++ })
		p.Later(&untilSeen{poller: p, after: func(int) bool { return done < tasks }})
		for range tasks {
			p.Go(&all, func() { done++ })
		}
	})
	all.Wait()
	p.Close() // the loop has ended, so its variables can be read
	g.Expect(rounds).To(BeNumerically("<", tasks/tasksPerRound/2))
}

func TestClosingAPollerRunsItsTasksFirst(t *testing.T) {
	g := NewWithT(t)
	p, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	done := 0
	for range 1000 {
		g.Expect(p.Do(func() { done++ })).To(Succeed())
	}
	p.Close()
	g.Expect(done).To(Equal(1000))
}

// untilSeen asks for another turn as long as after returns true.
type untilSeen struct {
	poller *Poller
	turns  int
	after  func(turns int) (more bool)
}

func (u *untilSeen) turn() {
	for began := time.Now(); time.Since(began) < turnsAtLeast; {
	}
	if u.turns++; u.after(u.turns) {
		u.poller.Later(u)
	}
}

func TestPollerChecksForReadyHandlersBetweenTurns(t *testing.T) {
	g := NewWithT(t)
	p, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	defer p.Close()
	var pipe [2]int
	g.Expect(unix.Pipe2(pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC)).To(Succeed())
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	seen, ended := 0, make(chan struct{})
	g.Expect(p.Do(func() {
		_, err = p.Add(pipe[0], Readable|Once, readyFunc(func(Readiness) { seen++ }))
		more := func(turns int) bool {
			_, _ = unix.Write(pipe[1], []byte{1})
			if turns == 100 {
				close(ended)
			}
			return turns < 100
		}
		p.Later(&untilSeen{poller: p, after: more})
		p.Later(&untilSeen{poller: p, after: func(turns int) bool { return turns < 100 }})
	})).To(Succeed())
	<-ended
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.Do(func() {})).To(Succeed())
	p.Close()
	g.Expect(seen).To(BeNumerically(">=", 90), "once after each turn, or after two if this thread had to wait in between")
}

func TestOtherGoroutinesRunWhileAPollerIsBusy(t *testing.T) {
	g := NewWithT(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	defer p.Close()
	var stop atomic.Bool
	var taken atomic.Int32
	g.Expect(p.Do(func() {
		p.Later(&untilSeen{poller: p, after: func(turns int) bool {
			taken.Store(int32(turns))
			return !stop.Load()
		}})
	})).To(Succeed())
	g.Eventually(taken.Load).Should(BeNumerically(">", 0))
	var missed []int32
	for range 50 {
		before := taken.Load()
		time.Sleep(time.Microsecond) // the loop gets the CPU meanwhile
		missed = append(missed, taken.Load()-before)
	}
	stop.Store(true)
	slices.Sort(missed)
	// Go's scheduler preempts a goroutine that has run for 10 ms, which is five turns.
	g.Expect(missed[len(missed)*4/5]).To(BeNumerically("<=", 2))
}

func TestPollerIsCrowdedIfItsEventListIsFull(t *testing.T) {
	g := NewWithT(t)
	p, err := NewPoller()
	g.Expect(err).NotTo(HaveOccurred())
	defer p.Close()
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for range eventsPerRound {
		fd, err := unix.Eventfd(1, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		g.Expect(err).NotTo(HaveOccurred())
		fds = append(fds, fd)
	}
	look := func(ready int) bool {
		crowded := make(chan bool, 1)
		seen := 0
		g.Expect(p.Do(func() {
			var watched []Registration
			for _, fd := range fds[:ready] {
				r, err := p.Add(fd, Readable, readyFunc(func(Readiness) {
					if seen++; seen == ready {
						crowded <- p.Crowded()
						for _, r := range watched {
							p.Remove(r)
						}
					}
				}))
				g.Expect(err).NotTo(HaveOccurred())
				watched = append(watched, r)
			}
		})).To(Succeed())
		return <-crowded
	}
	g.Expect(look(1)).To(BeFalse())
	g.Expect(look(eventsPerRound)).To(BeTrue())
}
