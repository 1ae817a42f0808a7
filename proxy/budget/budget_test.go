package budget

import (
	"testing"

	. "github.com/onsi/gomega"
)

// usual are the default limits.
var usual = Limits{MaxUDPSessions: 65536, MaxClientShare: 25}

func TestConnectionsLeaveCapacityForUDP(t *testing.T) {
	g := NewWithT(t)
	b := Of(1024, usual) // 768 of them are usable
	g.Expect(b.usable).To(BeEquivalentTo(1024 - 256))
	g.Expect(b.ConnectionLimit()).To(BeEquivalentTo(768/2), "only TCP is served")
	b.UDP.Add(8)
	g.Expect(b.ConnectionLimit()).To(BeEquivalentTo((768 - 8 - 96) / 2))
	b.Sessions.Add(150)
	g.Expect(b.ConnectionLimit()).To(BeEquivalentTo((768 - 8 - 150) / 2))
	b.Connections.Add(b.ConnectionLimit())
	b.Sessions.Add(-150)
	for i := range 100 {
		g.Expect(b.TakeSession(1, 1)).To(Equal(NoLimit), "session %d while connections are at their limit", i)
	}
}

func TestUDPLeavesCapacityForConnections(t *testing.T) {
	g := NewWithT(t)
	b := Of(1024, usual) // 768 of them are usable
	var sessions int64
	for b.TakeSession(1, 1) == NoLimit {
		sessions++
	}
	g.Expect(sessions).To(BeEquivalentTo(768 / 4))
	g.Expect(b.ConnectionLimit()).To(BeEquivalentTo((768 - 768/4) / 2))
}

func TestLastConnectionSlotsAreForSmallClientsAndPorts(t *testing.T) {
	for _, c := range []struct {
		name             string
		set              func(*Limits)
		open             int64 // before the connection
		toPort, ofClient int64 // including the connection
		want             error
	}{
		{"plenty of capacity", nil, 349 - 1, 349, 349, nil}, // a single client uses 350 of 400
		{"the last eighth, a client with a quarter", nil, 350, 351, 100, nil},
		{"the last eighth, a client with more", nil, 350, 351, 101, errTooManyOfClient},
		{"the last eighth, a client without a share limit", func(l *Limits) { l.MaxClientShare = 100 }, 350, 351, 351, nil},
		{"the last sixteenth, a port with half", nil, 375, 200, 1, nil},
		{"the last sixteenth, a port with more", nil, 375, 201, 1, errTooManyToPort},
		{"the last sixteenth, a port with its own higher limit", func(l *Limits) { l.MaxConnectionsPerPort = 400 }, 375, 376, 1, nil},
		{"no capacity", nil, 400, 1, 1, errTooMany},
		{"a port with its own lower limit", func(l *Limits) { l.MaxConnectionsPerPort = 3 }, 3, 4, 1, errTooManyToPort},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			limits := usual
			limits.MaxConnections = 400
			if c.set != nil {
				c.set(&limits)
			}
			b := Of(1<<20, limits)
			b.Connections.Store(c.open)
			err := b.TakeConnection(c.toPort, c.ofClient)
			if c.want == nil {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(b.Connections.Load()).To(Equal(c.open + 1))
				return
			}
			g.Expect(err).To(MatchError(c.want))
			g.Expect(b.Connections.Load()).To(Equal(c.open), "a rejected connection is not counted")
		})
	}
}

func TestWhichUDPSessionIsEvictedAtTheLimit(t *testing.T) {
	for _, c := range []struct {
		name             string
		open             int64 // before the connection, of 400
		toPort, ofClient int64 // including the connection
		want             Limit
	}{
		{"plenty of capacity", 100, 101, 101, NoLimit},
		{"the last eighth, a client with a quarter", 350, 100, 100, NoLimit},
		{"the last eighth, a client with more", 350, 100, 101, ClientLimit},
		{"a port's last eighth, a client with more", 180, 176, 101, ClientLimit},
		{"a port's share is used up, by many", 201, 201, 1, PortLimit},
		{"a port's share is used up, by one", 201, 201, 200, ClientLimit},
		{"all are in use", 400, 100, 1, TotalLimit},
		{"all are in use, by one", 400, 100, 101, ClientLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			limits := usual
			limits.MaxUDPSessions = 400
			b := Of(1<<20, limits)
			b.Sessions.Store(c.open)
			g.Expect(b.TakeSession(c.toPort, c.ofClient)).To(Equal(c.want))
		})
	}
}

func TestUDPSessionsLeaveHalfOfThePorts(t *testing.T) {
	for _, c := range []struct {
		name                      string
		localPorts, taken, toPort int64
		want                      Limit
	}{
		{"plenty of capacity", 400, 100, 100, NoLimit},
		{"a service port's share", 400, 100, 100, NoLimit},
		{"a service port's share is used up", 400, 100, 101, PortLimit},
		{"half of all", 400, 199, 50, NoLimit},
		{"half of all are used up", 400, 200, 50, TotalLimit},
		{"the number of ports is unknown", 0, 1 << 20, 1 << 20, NoLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			b := Of(1<<20, usual)
			b.localPorts = c.localPorts
			b.Ports.Store(c.taken)
			g.Expect(b.TakePort(c.toPort)).To(Equal(c.want))
			if c.want != NoLimit {
				g.Expect(b.Ports.Load()).To(Equal(c.taken))
			}
		})
	}
}

func TestProbesFitIntoReservedDescriptors(t *testing.T) {
	for descriptors, most := range map[int64]int64{8: 1, 256: 8, 1024: 32, 1 << 20: 64} {
		NewWithT(t).Expect(Of(descriptors, usual).Probes()).To(Equal(most), "of %d descriptors", descriptors)
	}
}

func TestListenersLeaveReservedDescriptorsIfClientsUseTheOthers(t *testing.T) {
	g := NewWithT(t)
	b := Of(1024, usual) // 256 of them are reserved
	var clients, listeners int64
	for b.TakeConnection(1, 1) == nil {
		clients++
	}
	for b.AdmitListener("late", false, false) == nil {
		b.CountListener("late", 80, false, 1)
		listeners++
	}
	g.Expect(2*clients + listeners).To(BeEquivalentTo(768 + 256/4))
	g.Expect(b.AdmitListener("late", false, false)).To(MatchError(ErrOpenFiles))
	b.Connections.Add(-1)
	g.Expect(b.AdmitListener("late", false, false)).To(Succeed())
}

func TestListenersLeaveLocalPortsToTheNode(t *testing.T) {
	g := NewWithT(t)
	b := Of(1<<20, usual)
	b.localPorts, b.firstLocal = 100, 32768
	for i := range 75 {
		g.Expect(b.AdmitListener("other", false, true)).To(Succeed())
		b.CountListener("default", uint16(32768+i), false, 1)
	}
	b.CountListener("default", 80, false, 1)
	b.CountListener("default", 32868, false, 1)
	g.Expect(b.AdmitListener("other", false, true)).To(MatchError(ErrLocalPorts))
	g.Expect(b.AdmitListener("other", false, false)).To(Succeed(), "at another port")
	g.Expect(b.AdmitListener("other", true, true)).To(Succeed(), "of UDP")
	for i := range 25 {
		b.CountListener("default", uint16(32768+i), true, 1)
	}
	g.Expect(b.AdmitListener("other", true, true)).To(MatchError(ErrLocalPorts))
	b.CountListener("default", 32800, false, -1)
	g.Expect(b.AdmitListener("other", false, true)).To(Succeed())
	g.Expect(b.Listeners.Load()).To(BeEquivalentTo(75 + 2 + 25 - 1))
}

func TestLastListenersAreNotForOneNamespace(t *testing.T) {
	g := NewWithT(t)
	b := Of(1024, usual)
	most := b.maxListeners()
	count := func(namespace string) (n int64) {
		for b.AdmitListener(namespace, false, false) == nil {
			b.CountListener(namespace, 80, false, 1)
			n++
		}
		return n
	}
	g.Expect(b.AdmitListener("greedy", false, false)).To(Succeed())
	g.Expect(count("greedy")).To(Equal(most - most/8))
	g.Expect(b.AdmitListener("greedy", false, false)).To(MatchError(ContainSubstring("reserved for namespaces other than greedy")))
	g.Expect(count("other")).To(Equal(most / 8))
	g.Expect(b.AdmitListener("other", false, false)).To(MatchError(ErrOpenFiles))
	for range most / 8 {
		b.CountListener("greedy", 80, false, -1)
	}
	g.Expect(b.AdmitListener("greedy", false, false)).To(MatchError(ErrOpenFiles), "with most of the listeners, and an eighth free")
	g.Expect(b.AdmitListener("third", false, false)).To(Succeed())
}
