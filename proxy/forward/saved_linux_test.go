package forward

import (
	"encoding/json"
	"io"
	"testing"
	"time"
	"unsafe"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

func TestSavedPairRecordsWhetherThisProcessHoldsBytes(t *testing.T) {
	g := NewWithT(t)
	p, client, endpoint := loopedPair(t)
	memory := make([]byte, 3*SavedSize)
	SavedHeader(memory).Store(1 << 63)
	s := SavedAt(memory, 2)
	over := make(chan bool, 1)
	var sockets [2]int
	p.onLoop(t, func() {
		h := (*PairHere)(p)
		g.Expect(h.IsSaved()).To(BeFalse())
		h.Save(s, func() { over <- true })
		g.Expect(h.IsSaved()).To(BeTrue())
		c, e := h.Sockets()
		for i, fd := range []Socket{c, e} {
			sockets[i], _ = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // like another process's duplicates
		}
	})
	state := func() (r PairState, is [2]bool) {
		r.ToEndpoint.Preface = 9 // Restored must keep it
		is[0], _, _ = s.Restored(&r)
		is[1] = s.Over()
		return r, is
	}
	whole, parts, ended := [2]bool{true, false}, [2]bool{false, false}, [2]bool{true, true}
	_, is := state()
	g.Expect(is).To(Equal(whole))

	g.Expect(client.Write([]byte("question"))).To(Equal(8))
	g.Expect(io.ReadFull(endpoint, make([]byte, 8))).To(Equal(8))
	g.Eventually(func(g Gomega) { // the pair records one after the other
		r, is := state()
		g.Expect(is).To(Equal(whole))
		g.Expect(r.ToEndpoint).To(Equal(WayState{Bytes: 8, Begun: true, Preface: 9}))
		g.Expect(r.ToClient).To(Equal(WayState{}))
	}).WithTimeout(20 * time.Second).Should(Succeed())

	// The endpoint does not read until this process holds some of the client's bytes.
	sent := 8
	g.Eventually(func() [2]bool {
		_ = client.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		n, _ := client.Write(make([]byte, 1<<20))
		sent += n
		_, is := state()
		return is
	}).WithTimeout(20 * time.Second).Should(Equal(parts))
	go func() { _, _ = io.Copy(io.Discard, endpoint) }()
	g.Eventually(func() int64 { r, _ := state(); return r.ToEndpoint.Bytes }).WithTimeout(20 * time.Second).Should(BeEquivalentTo(sent))
	g.Eventually(func() [2]bool { _, is := state(); return is }).Should(Equal(whole))

	g.Expect(client.CloseWrite()).To(Succeed())
	g.Expect(endpoint.Close()).To(Succeed())
	g.Eventually(over).WithTimeout(30 * time.Second).Should(Receive())
	_, is = state()
	g.Expect(is).To(Equal(ended))
	g.Eventually(func() error { _, err := client.Read(make([]byte, 1)); return err }).Should(HaveOccurred(), "even if a copy of its socket exists")
	g.Expect(SavedHeader(memory).Load()).To(Equal(uint64(1 << 63)))
	for _, fd := range sockets {
		unix.Close(fd)
	}
}

func TestPairWithAConsumedSocketErrorIsNotRestored(t *testing.T) {
	g := NewWithT(t)
	p, _, _ := loopedPair(t)
	s := SavedAt(make([]byte, SavedSize), 0)
	p.onLoop(t, func() {
		(*PairHere)(p).Save(s, func() {})
		p.endpoint.lost = true
		p.noteHeld(&p.toClient)
		p.endpoint.lost = false
	})
	whole, _, _ := s.Restored(&PairState{})
	over := s.Over()
	g.Expect([]bool{whole, over}).To(Equal([]bool{false, false}), "the failure would be mistaken for a regular end of the endpoint")
}

func TestPairIsNotRestoredDuringAHandover(t *testing.T) {
	g := NewWithT(t)
	p, client, endpoint := loopedPair(t)
	s := SavedAt(make([]byte, SavedSize), 0)
	var frozen *Frozen
	p.onLoop(t, func() {
		(*PairHere)(p).Save(s, func() {})
		frozen = (*PairHere)(p).Freeze()
	})
	whole, _, _ := s.Restored(&PairState{})
	g.Expect(whole).To(BeFalse(), "during the transfer")
	p.onLoop(t, func() { p.loop.Continue((*Pair)(unsafe.Pointer(p)), frozen, &frozen.Limits) })
	whole, _, _ = s.Restored(&PairState{})
	over := s.Over()
	g.Expect([]bool{whole, over}).To(Equal([]bool{true, false}), "the pair remains saved")
	g.Expect(client.Write([]byte("question"))).To(Equal(8))
	g.Expect(io.ReadFull(endpoint, make([]byte, 8))).To(Equal(8))
}

func TestSavedPairRecordsAPipeBeforeItsFirstByte(t *testing.T) {
	g := NewWithT(t)
	p, client, _ := loopedPair(t)
	memory := make([]byte, 3*SavedSize)
	s := SavedAt(memory, 2)
	var whole bool
	var number int
	p.onLoop(t, func() {
		p.loop.pipes.max, p.loop.pipes.released = 1, func(uint16) {}
		used := p.loop.pipes.get()
		used.number = 7 // another process has a copy
		p.loop.pipes.put(used)
		(*PairHere)(p).Save(s, func() {})
		for { // the endpoint does not read, so that the bytes stay in the pipe
			if _, err := p.endpoint.fd.write(make([]byte, 1<<20), 0); err != nil {
				break
			}
		}
		g.Expect(client.Write([]byte("question"))).To(Equal(8))
		p.client.readable, p.endpoint.writable = true, true
		p.splice(&p.toEndpoint, &p.client, &p.endpoint)
		g.Expect(p.toEndpoint.pipe).To(BeIdenticalTo(used))
		g.Expect(used.held).To(Equal(8))
		whole, number, _ = s.Restored(&PairState{})
	})
	g.Expect(whole).To(BeTrue())
	g.Expect(number).To(Equal(7))
}

func TestBytesHeldInAHandoverCanSurviveACrash(t *testing.T) {
	for _, pipes := range []int{2, 1, 0} {
		g := NewWithT(t)
		p, _, endpoint := loopedPair(t)
		s := SavedAt(make([]byte, SavedSize), 0)
		sent, number := 0, 0
		var whole bool
		p.onLoop(t, func() {
			p.loop.pipes.max = pipes
			for { // the endpoint does not read, so that this process holds bytes for it
				n, err := p.endpoint.fd.write(make([]byte, 1<<20), 0)
				if err != nil {
					break
				}
				sent += n
			}
			f := (*PairHere)(p).Freeze()
			f.ToEndpoint.Rest = []byte("question")
			p.loop.Continue((*Pair)(unsafe.Pointer(p)), f, &f.Limits)
			p.loop.SavePipes(func(int, int) uint16 { return 7 }, func(uint16) {})
			(*PairHere)(p).Save(s, func() {})
			whole, number, _ = s.Restored(&PairState{})
		})
		g.Expect(whole).To(Equal(pipes == 2), "without a pipe, the bytes are in this process; half of the pipes are for streams")
		g.Expect(number).To(Equal(7 * (pipes / 2)))
		got := make([]byte, sent+len("question"))
		g.Expect(endpoint.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
		g.Expect(io.ReadFull(endpoint, got)).To(Equal(len(got)))
		g.Expect(string(got[sent:])).To(Equal("question"))
	}
}

func TestBytesHeldInAHandoverAreSentWithoutSplice(t *testing.T) {
	g := NewWithT(t)
	p, client, endpoint := loopedPair(t)
	p.onLoop(t, func() {
		f := (*PairHere)(p).Freeze()
		p.loop.Continue((*Pair)(unsafe.Pointer(p)), f, &f.Limits)
		file, err := unix.MemfdCreate("not a pipe", unix.MFD_CLOEXEC) // so splice(2) returns EINVAL
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(unix.Write(file, []byte("question"))).To(Equal(8))
		_, err = unix.Seek(file, 0, io.SeekStart)
		g.Expect(err).NotTo(HaveOccurred())
		other, err := unix.Dup(file)
		g.Expect(err).NotTo(HaveOccurred())
		p.toEndpoint.pipe = p.loop.pipes.adopt(&Pipe{Read: file, Write: other, Held: 8})
		p.loop.pipes.max = 1
		p.move(shortTurn)
	})
	g.Expect(client.Write([]byte(", another"))).To(Equal(9))
	got := make([]byte, 17)
	g.Expect(endpoint.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
	g.Expect(io.ReadFull(endpoint, got)).To(Equal(17))
	g.Expect(string(got)).To(Equal("question, another"))
	p.onLoop(t, func() { g.Expect(p.loop.pipes.max).To(BeZero()) })
}

func TestHandoverKeepsThatAPeerHasReset(t *testing.T) {
	for _, name := range []string{"the endpoint resets", "the client resets"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p, client, endpoint := loopedPair(t)
			gone, left := endpoint, client
			if name == "the client resets" {
				gone, left = client, endpoint
			}
			var f *Frozen
			p.onLoop(t, func() { f = (*PairHere)(p).Freeze() })
			way, socket, edge := &f.ToEndpoint, f.Endpoint, func() EdgeState { return f.EndpointEdge }
			if gone == client {
				way, socket, edge = &f.ToClient, f.Client, func() EdgeState { return f.ClientEdge }
			}
			way.Rest = []byte("question")
			g.Expect(gone.SetLinger(0)).To(Succeed())
			g.Expect(gone.Close()).To(Succeed())
			g.Eventually(socket.gone).Should(BeTrue())
			p.onLoop(t, func() { // the write of Continue fails; the event that follows comes too late
				p.loop.Continue((*Pair)(unsafe.Pointer(p)), f, &f.Limits)
				f = (*PairHere)(p).Freeze()
			})
			g.Expect(edge().Lost).To(BeTrue())
			p.onLoop(t, func() { p.loop.Continue((*Pair)(unsafe.Pointer(p)), f, &f.Limits) })
			g.Expect(left.SetReadDeadline(time.Now().Add(5 * time.Second))).To(Succeed())
			_, err := left.Read(make([]byte, 1))
			g.Expect(err).To(MatchError(unix.ECONNRESET), "the stream would look complete")
		})
	}
}

func TestSilenceOfARestoredPairBeginsAgain(t *testing.T) {
	g := NewWithT(t)
	p, _, _ := loopedPair(t)
	limits := &Limits{Idle: time.Hour}
	began := time.Now().Add(-time.Minute)
	var at watch
	p.onLoop(t, func() {
		p.limits = limits
		p.loop.limited.add(p)
		p.loop.limited.pairs[p.place-1].watch.began = began
		text, err := json.Marshal((*PairHere)(p).State())
		g.Expect(err).NotTo(HaveOccurred())
		frozen := (*PairHere)(p).Freeze()
		frozen.PairState = PairState{}
		g.Expect(json.Unmarshal(text, &frozen.PairState)).To(Succeed())
		p.loop.Continue((*Pair)(unsafe.Pointer(p)), frozen, limits)
		at = p.loop.limited.pairs[p.place-1].watch
	})
	g.Expect(at.began).To(BeTemporally("~", began, time.Second))
	g.Expect(at.silent).To(BeTemporally("~", time.Now(), 10*time.Second))
	g.Expect(at.unsent).To(Equal(-1), "nothing to compare with")
}
