package proxyproto_test

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	pires "github.com/pires/go-proxyproto"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/proxyproto"
	"github.com/usherproxy/usher/test/lab"
)

var (
	client4, vip4 = netip.MustParseAddrPort("203.0.113.9:4711"), netip.MustParseAddrPort("10.96.0.10:80")
	client6, vip6 = netip.MustParseAddrPort("[2001:db8::9]:4711"), netip.MustParseAddrPort("[fd00:10:96::10]:80")
)

const signature = "\r\n\r\n\x00\r\nQUIT\n"

// TestHeader uses the bytes of the protocol's description, sections 2.1 and 2.2.
func TestHeader(t *testing.T) {
	for _, c := range []struct {
		version  config.ProxyProtocol
		protocol config.Protocol
		from, to netip.AddrPort
		want     string
	}{
		{0, config.TCP, client4, vip4, ""},
		{config.ProxyV1, config.TCP, client4, vip4, "PROXY TCP4 203.0.113.9 10.96.0.10 4711 80\r\n"},
		{config.ProxyV1, config.TCP, client6, vip6, "PROXY TCP6 2001:db8::9 fd00:10:96::10 4711 80\r\n"},
		{config.ProxyV1, config.TCP, client6, vip4, "PROXY TCP6 2001:db8::9 ::ffff:10.96.0.10 4711 80\r\n"},
		{config.ProxyV2, config.TCP, client4, vip4, signature + "\x21\x11\x00\x0c\xcb\x00\x71\x09\x0a\x60\x00\x0a\x12\x67\x00\x50"},
		{config.ProxyV2, config.UDP, client4, vip4, signature + "\x21\x12\x00\x0c\xcb\x00\x71\x09\x0a\x60\x00\x0a\x12\x67\x00\x50"},
		{config.ProxyV2, config.TCP, client6, vip6, signature + "\x21\x21\x00\x24" +
			"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09" + "\xfd\x00\x00\x10\x00\x96\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10" + "\x12\x67\x00\x50"},
	} {
		NewWithT(t).Expect(string(proxyproto.Header(c.version, c.protocol, c.from, c.to))).To(Equal(c.want))
	}
}

func TestReadAcceptsValidHeaders(t *testing.T) {
	tlvs := strings.Repeat("\xe0\x00\x05hello", 100) // 800 bytes
	for header, want := range map[string]netip.AddrPort{
		"PROXY TCP4 203.0.113.9 10.96.0.10 4711 80\r\n":               client4,
		"PROXY TCP6 2001:db8::9 fd00:10:96::10 4711 80\r\n":           client6,
		"PROXY TCP6 ::ffff:203.0.113.9 ::ffff:10.96.0.10 4711 80\r\n": client4,
		"PROXY UNKNOWN\r\n":                           {},
		"PROXY UNKNOWN ffff:: ffff:: 65535 65535\r\n": {},
		signature + "\x21\x11\x00\x0c\xcb\x00\x71\x09\x0a\x60\x00\x0a\x12\x67\x00\x50":        client4,
		signature + "\x21\x11\x03\x2c\xcb\x00\x71\x09\x0a\x60\x00\x0a\x12\x67\x00\x50" + tlvs: client4,
		signature + "\x20\x00\x00\x00":                               {}, // LOCAL
		signature + "\x20\x11\x00\x03abc":                            {}, // LOCAL, with data to ignore
		signature + "\x21\x00\x00\x02ab":                             {}, // of an unknown protocol
		signature + "\x21\x31\x00\xd8" + strings.Repeat("\x00", 216): {}, // of a Unix socket
	} {
		g := NewWithT(t)
		for _, payload := range []string{"", "GET / HTTP/1.1\r\n", "\n", header} {
			got, n, err := proxyproto.Read([]byte(header + payload))
			g.Expect(err).NotTo(HaveOccurred(), "%q", header)
			g.Expect(n).To(Equal(len(header)), "%q", header)
			g.Expect(got).To(Equal(want), "%q", header)
		}
		for n := range header {
			g.Expect(proxyproto.Complete([]byte(header[:n]))).To(BeFalse(), "%q", header[:n])
			_, _, err := proxyproto.Read([]byte(header[:n]))
			g.Expect(err).To(MatchError(proxyproto.ErrCut))
		}
		g.Expect(proxyproto.Complete([]byte(header))).To(BeTrue())
	}
}

func TestReadRejectsInvalidHeaders(t *testing.T) {
	for header, want := range map[string]error{
		"GET / HTTP/1.1\r\n": proxyproto.ErrMissing,
		"\x00":               proxyproto.ErrMissing,
		"PROXYTCP4 ":         proxyproto.ErrMissing,
		"PROXY TCP4 203.0.113.9 10.96.0.10 4711 80\n":               proxyproto.ErrWrong,
		"PROXY TCP4 203.0.113.9 10.96.0.10 4711\r\n":                proxyproto.ErrWrong,
		"PROXY TCP4 203.0.113.9 10.96.0.10 4711 65536\r\n":          proxyproto.ErrWrong,
		"PROXY TCP4 2001:db8::9 fd00:10:96::10 4711 80\r\n":         proxyproto.ErrWrong,
		"PROXY TCP4 0.0.0.0 10.96.0.10 4711 80\r\n":                 proxyproto.ErrWrong,
		"PROXY TCP4 255.255.255.255 10.96.0.10 4711 80\r\n":         proxyproto.ErrWrong,
		"PROXY TCP4 224.0.0.1 10.96.0.10 4711 80\r\n":               proxyproto.ErrWrong,
		"PROXY TCP6 fe80::1%eth0 fd00:10:96::10 4711 80\r\n":        proxyproto.ErrWrong,
		"PROXY UDP4 203.0.113.9 10.96.0.10 4711 80\r\n":             proxyproto.ErrWrong,
		"PROXY TCP4 " + strings.Repeat("1", 100):                    proxyproto.ErrTooLong,
		"PROXY UNKNOWN " + strings.Repeat("1", 92) + "\r\n":         proxyproto.ErrTooLong, // 108 bytes
		signature + "\x11\x11\x00\x00":                              proxyproto.ErrWrong,   // version 1
		signature + "\x22\x11\x00\x0c" + strings.Repeat("\x01", 12): proxyproto.ErrWrong,   // no such command
		signature + "\x21\x13\x00\x0c" + strings.Repeat("\x01", 12): proxyproto.ErrWrong,   // no such transport
		signature + "\x21\x12\x00\x0c" + strings.Repeat("\x01", 12): proxyproto.ErrWrong,   // of UDP
		signature + "\x21\x11\x00\x0b" + strings.Repeat("\x01", 11): proxyproto.ErrWrong,   // too short
		signature + "\x21\x11\xff\xff":                              proxyproto.ErrTooLong,
		signature + "\x21\x11\x0f\xf1":                              proxyproto.ErrTooLong, // 4,097 bytes
	} {
		g := NewWithT(t)
		g.Expect(proxyproto.Complete([]byte(header))).To(BeTrue(), "%q", header)
		from, n, err := proxyproto.Read([]byte(header))
		g.Expect(err).To(MatchError(want), "%q", header)
		g.Expect(from.IsValid()).To(BeFalse())
		g.Expect(n).To(BeZero())
	}
}

func TestReadReportsAPanicOfTheParser(t *testing.T) {
	g := NewWithT(t)
	defer proxyproto.SetParser(func(*bufio.Reader) (*pires.Header, error) { panic("index out of range") })()
	header := proxyproto.Header(config.ProxyV1, config.TCP, client4, vip4)
	client, n, err := proxyproto.Read(append(header, strings.Repeat("x", 1000)...))
	g.Expect(err).To(MatchError(proxyproto.ErrPanic))
	g.Expect(err).To(MatchError(And(ContainSubstring("index out of range"), ContainSubstring(`"PROXY TCP4 203.0.113.9`))))
	g.Expect(len(err.Error())).To(BeNumerically("<", 300))
	g.Expect(client.IsValid()).To(BeFalse())
	g.Expect(n).To(BeZero())
}

// FuzzRead has one property: Read accepts only a complete header with a client, whatever follows it. It rejects
// anything shorter, and always returns.
func FuzzRead(f *testing.F) {
	for _, v := range []config.ProxyProtocol{config.ProxyV1, config.ProxyV2} {
		f.Add(proxyproto.Header(v, config.TCP, client4, vip4))
		f.Add(proxyproto.Header(v, config.TCP, client6, vip6))
	}
	f.Add([]byte("PROXY UNKNOWN\r\nGET /"))
	f.Add([]byte(signature + "\x20\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, first []byte) { holds(t, first) })
}

func holds(t *testing.T, first []byte) {
	t.Helper()
	client, n, err := proxyproto.Read(first)
	if (err == nil) != (n > 0) || n > min(len(first), proxyproto.MaxHeader) || err != nil && client.IsValid() {
		t.Fatalf("%q: %s, %d, %v", first, client, n, err)
	}
	if len(first) >= proxyproto.MaxHeader && !proxyproto.Complete(first) {
		t.Fatalf("%q: more is wanted than there may be", first)
	}
	if err != nil {
		return
	}
	for _, cut := range []int{0, n / 2, n - 1} {
		if proxyproto.Complete(first[:cut]) {
			t.Fatalf("%q is said to be a header of %d bytes, and complete with %d", first, n, cut)
		}
	}
	again, m, err := proxyproto.Read(append(bytes.Clone(first[:n]), "more"...))
	if again != client || m != n || err != nil {
		t.Fatalf("%q: %s, %d; with another payload %s, %d, %v", first, client, n, again, m, err)
	}
}

// The test finds in one second as much as a fuzzer in a minute: it changes, removes, inserts and repeats bytes of
// headers.
func TestReadOfCorruptHeaders(t *testing.T) {
	for seed := range uint64(100_000) {
		holds(t, lab.SpoiledHeader(rand.New(rand.NewPCG(seed, 15))))
	}
}
