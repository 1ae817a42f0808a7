package forward

import (
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

type readyFunc func(Readiness)

func (f readyFunc) Ready(r Readiness) { f(r) }

func TestAPollerCallsWhoIsReadyAndForgetsWhoIsClosed(t *testing.T) {
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

func TestAPollerKeepsTheOrderOfTasks(t *testing.T) {
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
