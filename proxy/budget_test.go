package proxy

import (
	"testing"

	. "github.com/onsi/gomega"
)

// with returns the options of a proxy without flags, changed by set.
func with(set func(*Options)) Options {
	o := Defaults()
	set(&o)
	return o
}

// budgetOf returns a budget of 1,024 descriptors, of which 768 are usable.
func budgetOf(o Options) *budget {
	b := newBudget(&o)
	b.descriptors = 1024
	return &b
}

func TestConnectionsLeaveRoomForUDP(t *testing.T) {
	g := NewWithT(t)
	b := budgetOf(Defaults())
	g.Expect(b.usable()).To(BeEquivalentTo(1024 - 256))
	g.Expect(b.connectionLimit()).To(BeEquivalentTo(768/2), "where nothing but TCP is served")
	b.udp.Add(8)
	g.Expect(b.connectionLimit()).To(BeEquivalentTo((768 - 8 - 96) / 2))
	b.sessions.Add(150)
	g.Expect(b.connectionLimit()).To(BeEquivalentTo((768 - 8 - 150) / 2))
	b.connections.Add(b.connectionLimit())
	b.sessions.Add(-150)
	for i := range 100 {
		g.Expect(b.takeSession(1, 1, 2)).To(Equal(notFull), "session %d, while connections have all that they may", i)
	}
}

func TestUDPLeavesRoomForConnections(t *testing.T) {
	g := NewWithT(t)
	b := budgetOf(Defaults())
	var sessions int64
	for b.takeSession(1, 1, 1) == notFull {
		sessions++
	}
	g.Expect(sessions).To(BeEquivalentTo(768 / 4))
	g.Expect(b.connectionLimit()).To(BeEquivalentTo((768 - 768/4) / 2))
}

func TestTheLastRoomForConnectionsIsForThoseWhoHaveLittle(t *testing.T) {
	for _, c := range []struct {
		name             string
		set              func(*Options)
		open             int64 // before
		toPort, ofClient int64 // this one included
		want             error
	}{
		{"much room", nil, 349 - 1, 349, 349, nil}, // 350 of 400 are in use by a single client
		{"the last eighth, a client with a quarter", nil, 350, 351, 100, nil},
		{"the last eighth, a client with more", nil, 350, 351, 101, errTooManyOfClient},
		{"the last eighth, a client with more that may", func(o *Options) { o.MaxClientShare = 100 }, 350, 351, 351, nil},
		{"the last sixteenth, a port with half", nil, 375, 200, 1, nil},
		{"the last sixteenth, a port with more", nil, 375, 201, 1, errTooManyToPort},
		{"the last sixteenth, a port with more that may", func(o *Options) { o.MaxConnectionsPerPort = 400 }, 375, 376, 1, nil},
		{"no room", nil, 400, 1, 1, errTooMany},
		{"a port with its own bound", func(o *Options) { o.MaxConnectionsPerPort = 3 }, 3, 4, 1, errTooManyToPort},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			o := with(func(o *Options) {
				o.MaxConnections = 400
				if c.set != nil {
					c.set(o)
				}
			})
			b := newBudget(&o)
			b.descriptors = 1 << 20
			b.connections.Store(c.open)
			err := b.takeConnection(c.toPort, c.ofClient)
			if c.want == nil {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(b.connections.Load()).To(Equal(c.open + 1))
				return
			}
			g.Expect(err).To(MatchError(c.want))
			g.Expect(b.connections.Load()).To(Equal(c.open), "what was not had is not kept")
		})
	}
}

func TestWhoseUDPSessionEndsWhenThereIsNoRoom(t *testing.T) {
	for _, c := range []struct {
		name             string
		open             int64 // before, of 400
		toPort, ofClient int64 // this one included; the client's on one of two loops
		want             fullness
	}{
		{"much room", 100, 101, 101, notFull},
		{"the last eighth, a client with a quarter", 350, 100, 50, notFull},
		{"the last eighth, a client with more", 350, 100, 51, clientFull},
		{"a port's last eighth, a client with more", 180, 176, 51, clientFull},
		{"a port's share is used up, by many", 201, 201, 1, portFull},
		{"a port's share is used up, by one", 201, 201, 200, clientFull},
		{"all are in use", 400, 100, 1, allFull},
		{"all are in use, by one", 400, 100, 51, clientFull},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			o := with(func(o *Options) { o.MaxUDPSessions = 400 })
			b := newBudget(&o)
			b.descriptors = 1 << 20
			b.sessions.Store(c.open)
			g.Expect(b.takeSession(c.toPort, c.ofClient, 2)).To(Equal(c.want))
		})
	}
}
