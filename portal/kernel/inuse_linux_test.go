package kernel

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("the local addresses of connections", func() {
	noted := func(read func(io.Reader, func(netip.Addr)) error, text string) (addrs []string) {
		GinkgoHelper()
		Expect(read(strings.NewReader(text), func(a netip.Addr) { addrs = append(addrs, a.String()) })).To(Succeed())
		return addrs
	}
	// word formats 32 bits of an address as /proc/net/tcp does.
	word := func(b ...byte) string { return fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b)) }

	It("are read from /proc/net/tcp and tcp6, except those of listeners and closed connections", func() {
		const rest = ":0050 00000000:C350 %s 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1\n"
		const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
		line := func(addr, state string) string { return "   0: " + addr + fmt.Sprintf(rest, state) }
		Expect(noted(readTCP, head+
			line(word(10, 96, 0, 10), "01")+ // established
			line(word(10, 96, 0, 11), "0A")+ // listening
			line(word(10, 96, 0, 12), "06")+ // TIME-WAIT
			line(word(10, 96, 0, 13), "04")+ // closed by the process; the kernel finishes it
			line(word(0xfd, 0x96, 0, 0)+word(0, 0, 0, 0)+word(0, 0, 0, 0)+word(0, 0, 0, 0x10), "01")+
			line(word(0, 0, 0, 0)+word(0, 0, 0, 0)+word(0, 0, 0xff, 0xff)+word(10, 96, 0, 14), "01"),
		)).To(Equal([]string{"10.96.0.10", "10.96.0.13", "fd96::10", "10.96.0.14"}))
	})

	It("are all read from /proc/net/sctp/assocs", func() {
		Expect(noted(readAssociations, ` ASSOC     SOCK   STY SST ST HBKT ASSOC-ID TX_QUEUE RX_QUEUE UID INODE LPORT RPORT LADDRS <-> RADDRS HBINT INS OUTS MAXRT T1X T2X RTXC wmema wmemq sndbuf rcvbuf
       0        0 2   1   3  0       1        0        0       0  1234 3868  45678  *10.96.0.10 <-> *10.244.0.100 10.244.0.11 \t    7500     8     8   10    0    0        0        1        0   212992   212992
       0        0 10  1   3  0       2        0        0       0  1235 3868  45679  *fd00:0010:0096:0000:0000:0000:0000:0010 10.96.0.11 <-> *fd00:0244:0000:0000:0000:0000:0000:0100 \t    7500     8     8   10    0    0        0        1        0   212992   212992
`)).To(Equal([]string{"10.96.0.10", "10.96.0.11", "fd00:10:96::10"}))
	})
})

// FuzzConnectionLists: for any content, reading ends and reports only valid addresses.
func FuzzConnectionLists(f *testing.F) {
	f.Add("   0: 0A00600A:0050 00000000:C350 01 0:0\n")
	f.Add(" 0 0 2 1 3 0 1 0 0 0 1 3868 4567 *10.96.0.10 fd00::1 <-> *10.244.0.100 7500\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, read := range []func(io.Reader, func(netip.Addr)) error{readTCP, readAssociations} {
			_ = read(strings.NewReader(text), func(a netip.Addr) {
				if !a.IsValid() || a.Is4In6() {
					t.Errorf("%q is noted", a)
				}
			})
		}
		_ = readListeners(strings.NewReader(text), "0A", func(at netip.AddrPort, _, _ string) {
			if !at.Addr().IsValid() || at.Addr().Is4In6() {
				t.Errorf("%q is noted", at)
			}
		})
	})
}
