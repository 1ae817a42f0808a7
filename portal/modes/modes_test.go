package modes

import (
	"context"
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
)

var _ = Describe("selecting a portal", func() {
	fails := portal.Mode{Name: "broken", Open: func(context.Context, portal.Options) (portal.Portal, error) {
		return nil, errors.New("no kernel for it")
	}}
	works := none.Mode

	It("uses the first that works, and logs why it skipped another", func() {
		log, seen := logtest.NewNullLogger()
		p, err := first(context.Background(), []portal.Mode{fails, works, fails}, portal.Options{Log: log})
		Expect(err).NotTo(HaveOccurred())
		Expect(p.Mode()).To(Equal(none.Mode.Name))
		Expect(seen.AllEntries()).To(HaveLen(2))
		Expect(seen.AllEntries()[0].Message).To(Equal("Portal skipped"))
		Expect(seen.AllEntries()[0].Data).To(HaveKeyWithValue(logrus.ErrorKey, MatchError("no kernel for it")))
	})
	It("fails with the reasons if no portal works", func() {
		_, err := first(context.Background(), []portal.Mode{fails}, portal.Options{})
		Expect(err).To(MatchError(ContainSubstring("broken: no kernel for it")))
	})
	It("rejects an unknown mode, and lists the valid ones", func() {
		_, err := New(context.Background(), "ipvs", portal.Options{})
		Expect(err).To(MatchError(`invalid portal "ipvs": must be one of auto, iptables, nftables, address, none`))
	})
	It("rejects an unknown iptables target, and lists the valid ones", func() {
		_, err := New(context.Background(), none.Mode.Name, portal.Options{IPTablesTarget: "tproxy"})
		Expect(err).To(MatchError(`portal: invalid iptables target "tproxy": must be one of dnat, redirect`))
	})
	It("finds modes by their names", func() {
		Expect(Named(Auto)).To(HaveLen(len(All)))
		Expect(Named("address")).To(HaveLen(1))
		Expect(Named("ipvs")).To(BeEmpty())
		Expect(None).To(Equal(none.Mode.Name))
		for _, m := range All {
			Expect(m.Traits.Redirects && m.Traits.Local).To(BeFalse(), m.Name)
			Expect(m.Traits.Installs).To(Equal(m.Traits.CarriesVIPs()), m.Name)
			Expect(m.Traits.About).NotTo(BeEmpty(), m.Name)
		}
	})
	It("refuses an empty port range", func() {
		_, err := New(context.Background(), none.Mode.Name, portal.Options{ProxyPorts: portal.PortRange{First: 10, Last: 5}})
		Expect(err).To(MatchError(ContainSubstring("10-5")))
	})
})
