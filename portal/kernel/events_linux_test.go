package kernel

import (
	"context"
	"runtime"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("kernel events", func() {
	DescribeTable("are parsed from an nf_tables message", func(data string, want string) {
		Expect(nftString([]byte(data), 1)).To(Equal(want))
	},
		Entry("that is empty", "", ""),
		Entry("without attributes", "\x02\x00\x00\x00", ""),
		Entry("with a name", "\x02\x00\x00\x00\x0a\x00\x01\x00usher\x00", "usher"),
		Entry("with a name after another attribute", "\x02\x00\x00\x00\x06\x00\x03\x00a\x00\x00\x00\x06\x00\x01\x80b\x00", "b"),
		Entry("that is truncated", "\x02\x00\x00\x00\xff\x00\x01\x00usher", ""),
		Entry("with an attribute without a length", "\x02\x00\x00\x00\x00\x00\x01\x00usher", ""),
	)

	It("keep known rules valid until another program changes them or some minutes pass", func() {
		node := lab.New().Node
		known, now := new(Known), time.Now()
		Expect(known.Doubtful(now)).To(BeTrue())
		Expect(known.Doubtful(now)).To(BeTrue(), "nothing is watched")
		ctx, cancel := context.WithCancel(context.Background())
		var notified <-chan struct{}
		node.Do(func() (err error) {
			notified, err = Watch(ctx, known.By(func() (Subscription, error) {
				return NFTEvents(func(table, _ string) bool { return table == "ours" })
			}))
			return err
		})
		Expect(known.Doubtful(now)).To(BeTrue(), "changes before the watch are unknown")
		Expect(known.Doubtful(now)).To(BeFalse())
		node.Output("nft", "add table ip other")
		Consistently(func() bool { return known.Doubtful(now) }, "100ms").Should(BeFalse())
		node.Output("nft", "add table ip ours")
		Eventually(func() bool { return known.Doubtful(now) }).Should(BeTrue())
		Expect(known.Doubtful(now)).To(BeFalse(), "until it changes again")
		Expect(known.Doubtful(now.Add(knownFor))).To(BeTrue())
		cancel()
		for range notified { // until it is closed
		}
		Expect(known.Doubtful(now)).To(BeTrue())
		Expect(known.Doubtful(now)).To(BeTrue(), "the watch has ended")
	})

	It("increment the nf_tables generation once per transaction of any program", func() {
		node := lab.New().Node
		generation := func() (n uint32) {
			node.Do(func() error { n = NFTGeneration(); return nil })
			return n
		}
		before := generation()
		Expect(before).NotTo(BeZero())
		Expect(generation()).To(Equal(before))
		node.Output("nft", "add table ip other; add chain ip other some; add rule ip other some counter")
		Expect(generation()).To(Equal(before+1), "one transaction")
		node.Output("nft", "list ruleset")
		Expect(generation()).To(Equal(before + 1))
		node.Output("nft", "flush ruleset")
		Expect(generation()).To(Equal(before + 2))
	})

	It("are also sent for lost messages", func() {
		node := lab.New().Node
		var s Subscription
		node.Do(func() (err error) {
			s, err = NFTEvents(func(string, string) bool { return false })
			return err
		})
		Expect(s.socket.SetReceiveBufferSize(2048, true)).To(Succeed())
		for range 3 {
			node.Output("sh", "-c", "nft 'table ip other { set s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 11.0.0.1-11.2.3.4 }; }; }; flush ruleset'")
		}
		events := make(chan struct{}, 1)
		done := make(chan struct{})
		go func() { s.receive(events); close(done) }()
		Eventually(events).Should(Receive())
		s.socket.Close()
		Eventually(done).Should(BeClosed())
	})
})

var _ = Describe("a subscription that the kernel refuses", func() {
	It("does not close a descriptor that was opened later", func() {
		refused := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread without capabilities ends
			var none [2]unix.CapUserData
			err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
			if err == nil {
				_, err = subscribe(unix.NETLINK_NETFILTER, nil, unix.NFNLGRP_NFTABLES)
			}
			refused <- err
		}()
		Expect(<-refused).To(MatchError(unix.EPERM))
		var pipes [][2]int
		for range 16 { // one of them reuses the descriptor number of the subscription
			var p [2]int
			Expect(unix.Pipe2(p[:], unix.O_CLOEXEC)).To(Succeed())
			DeferCleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
			pipes = append(pipes, p)
		}
		for range 3 {
			runtime.GC() // also runs finalizers
			time.Sleep(10 * time.Millisecond)
		}
		for _, p := range pipes {
			for _, fd := range p {
				Expect(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)).To(Equal(unix.FD_CLOEXEC))
			}
		}
	})
})
