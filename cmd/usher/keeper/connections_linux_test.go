package keeper

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/proxy/forward"
)

// newKeeper returns a keeper with one child that has a socket for connections, and the child's end of the socket.
func newKeeper() (k *keeper, c *child, theirs int) {
	logger, _ := test.NewNullLogger()
	k = &keeper{Options: Options{Log: logger}, sent: make(chan func()), kept: map[string][]int{}}
	ours, theirs, err := channel()
	if err != nil {
		panic(err)
	}
	c = &child{pid: 1 << 30, channel: ours}
	k.current = c
	return k, c, theirs
}

var _ = Describe("the connections that a keeper holds copies of", func() {
	var (
		k      *keeper
		c      *child
		theirs int
		memory int
	)
	BeforeEach(func() {
		k, c, theirs = newKeeper()
		DeferCleanup(func() { unix.Close(c.channel) })
		var err error
		memory, err = unix.MemfdCreate("area", unix.MFD_CLOEXEC)
		Expect(err).NotTo(HaveOccurred())
		Expect(unix.Ftruncate(memory, 10*forward.SavedSize)).To(Succeed())
		DeferCleanup(unix.Close, memory)
	})
	// connection returns a socket of a TCP connection, and the peer's socket.
	connection := func() (fd, peer int) {
		l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		Expect(err).NotTo(HaveOccurred())
		defer unix.Close(l)
		Expect(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})).To(Succeed())
		Expect(unix.Listen(l, 1)).To(Succeed())
		at, err := unix.Getsockname(l)
		Expect(err).NotTo(HaveOccurred())
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		Expect(err).NotTo(HaveOccurred())
		Expect(unix.Connect(fd, at)).To(Succeed())
		peer, _, err = unix.Accept(l)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(unix.Close, peer)
		return fd, peer
	}
	say := func(text string, fds ...int) {
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		Expect(unix.Sendmsg(theirs, []byte(text), rights, nil, 0)).To(Succeed())
		k.hearAll(c)
	}
	hear := func(of int) (string, int) {
		say("next")
		text, oob := make([]byte, fdstore.MaxPacket), make([]byte, 1024)
		n, oobn, _, _, err := unix.Recvmsg(of, text, oob, unix.MSG_DONTWAIT)
		Expect(err).NotTo(HaveOccurred())
		count := 0
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		Expect(err).NotTo(HaveOccurred())
		for i := range messages {
			fds, err := unix.ParseUnixRights(&messages[i])
			Expect(err).NotTo(HaveOccurred())
			for _, fd := range fds {
				unix.Close(fd)
			}
			count += len(fds)
		}
		return string(text[:n]), count
	}
	saves := func(slots ...int) (peers []int) {
		var lines strings.Builder
		var fds []int
		for _, slot := range slots {
			fmt.Fprintf(&lines, "%d {connection %d}\n", slot, slot)
			for range 2 {
				fd, peer := connection()
				defer unix.Close(fd)
				fds, peers = append(fds, fd), append(peers, peer)
			}
		}
		say("save 7\n"+lines.String(), fds...)
		return peers
	}
	// ended returns the state of a connection as its peer reads it: "open", "end" or "reset".
	ended := func(peer int) string {
		_, _, err := unix.Recvfrom(peer, make([]byte, 1), unix.MSG_DONTWAIT)
		switch err {
		case unix.EAGAIN:
			return "open"
		case unix.ECONNRESET:
			return "reset"
		}
		return "end"
	}

	It("pass to the process that replaces a crashed one, except closed connections", func() {
		say("area 7", memory)
		peers := saves(1, 2, 3)
		for number := range 2 {
			var pipe [2]int
			Expect(unix.Pipe2(pipe[:], unix.O_CLOEXEC)).To(Succeed())
			say(fmt.Sprintf("save 7\n-%d \n", 5+number), pipe[:]...)
			unix.Close(pipe[0])
			unix.Close(pipe[1])
		}
		say("drop 7 -5 2")
		Expect(k.connections).To(Equal(2 + 1))
		Expect(ended(peers[2])).To(Equal("end"), "the keeper had the last copy")
		Expect(ended(peers[0])).To(Equal("open"))
		Expect(hear(theirs)).To(Equal("end"), "a process does not get its own connections")

		next := &child{pid: 1 << 30}
		k.inherit(c, nil)
		k.assign(k.orphans, next)
		next.channel, c.channel = c.channel, 0
		c = next
		text, fds := hear(theirs)
		Expect([]any{text, fds}).To(Equal([]any{"area 7", 1}))
		text, fds = hear(theirs)
		Expect([]any{text, fds}).To(Equal([]any{"save 7\n-6 \n1 {connection 1}\n3 {connection 3}\n", 6}))
		Expect(hear(theirs)).To(Equal("end"))
		say("drop 7 1 3")
		Expect(k.connections).To(BeZero())
		Expect(c.areas).To(BeEmpty())
		Expect(ended(peers[0])).To(Equal("end"))
	})

	It("are reset if no process continues them, and closed if they had finished", func() {
		say("area 7", memory)
		peers := saves(1, 2)
		_, err := unix.Pwrite(memory, []byte{forward.SavedOver, 0, 0, 0}, 2*forward.SavedSize)
		Expect(err).NotTo(HaveOccurred())
		k.abandon(c.areas)
		for _, peer := range peers[:2] {
			Eventually(ended).WithArguments(peer).Should(Equal("reset"))
		}
		for _, peer := range peers[2:] {
			Eventually(ended).WithArguments(peer).Should(Equal("end"))
		}
		Expect(k.connections).To(BeZero())
	})

	DescribeTable("are reset if the process that replaces a crashed one does not receive them", func(fail func()) {
		say("area 7", memory)
		peers := saves(1, 2)
		areas := c.areas
		c.areas = nil
		k.assign(areas, c)
		fail()
		for _, peer := range peers {
			Eventually(ended).WithArguments(peer).Should(Equal("reset"))
		}
		Expect(k.connections).To(BeZero())
		Expect(c.areas).To(BeEmpty())
	},
		Entry("because the keeper cannot send them", func() {
			Expect(unix.SetsockoptInt(c.channel, unix.SOL_SOCKET, unix.SO_SNDBUF, 1)).To(Succeed())
			c.areas[0].saved[2].text += strings.Repeat("x", 10000)
			text, _ := hear(theirs)
			Expect(text).To(Equal("area 7"))
			Expect(hear(theirs)).To(Equal("end"))
		}),
		Entry("because it has given up", func() { say("end") }),
	)

	It("include those sent just before the process exited, even if it left packets unread", func() {
		k.listenTo(c)
		k.say(c, fdstore.WordMore)
		Expect(unix.Sendmsg(theirs, []byte("area 7"), unix.UnixRights(memory), nil, 0)).To(Succeed())
		Expect(unix.Close(theirs)).To(Succeed())
		k.hangUp(c)
		Expect(c.areas).To(HaveLen(1))
		Expect(c.channel).To(BeZero())
	})
})

// FuzzConnections: for any messages of a process, the keeper does not fail, and counts all its open descriptors.
func FuzzConnections(f *testing.F) {
	f.Add("area 7\x00save 7\n1 {}\n\x00drop 7 1\x00next")
	f.Add("area 7\x00save 7\n1 {}\n\x00save 7\n-1 \n\x00save 7\n-1 \n\x00drop 7 -1\x00next\x00drop 7 1")
	f.Add("save 7\n1 {}\n\x00area 7\x00area 7\x00save 7\n1 {}\n2 {}\n\x00save 7\n1 {}\n\x00save 7\nx {}\n\x00drop 7\x00drop x y\x00next\x00next 1")
	f.Fuzz(func(t *testing.T, text string) {
		k, c, theirs := newKeeper()
		defer unix.Close(theirs)
		defer unix.Close(c.channel)
		var all []int
		for i, packet := range strings.Split(text, "\x00") {
			var fds []int
			for range i % 4 {
				fd, err := unix.MemfdCreate("connection", unix.MFD_CLOEXEC)
				if err == unix.EMFILE {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				fds = append(fds, fd)
			}
			all = append(all, fds...)
			if !k.act(c, packet, fds) {
				for _, fd := range fds {
					unix.Close(fd)
				}
			}
			if i%5 == 4 {
				areas := c.areas
				c.areas = nil
				k.assign(areas, c)
			}
		}
		k.abandon(c.areas)
		if k.connections != 0 {
			t.Errorf("%d connections are left", k.connections)
		}
		for _, fd := range all {
			if unix.Close(fd) == nil {
				t.Fatalf("%q: one stays open", text)
			}
		}
	})
}
