package datagram

import (
	"os"
	"testing"

	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/forward"
)

// FuzzBequest: usher understands or skips any session record of another version, and leaks no file.
func FuzzBequest(f *testing.F) {
	f.Add(`{"socket":"udp 10.96.0.10:53 #0","peer":"AgDBn38AAAE=","local":"10.96.0.10","to":"10.96.0.10:53","endpoint":"10.1.0.1:53","hops":63,"asked":true,"began":"2026-01-01T00:00:00Z","silent":1000}`)
	f.Add(`{"socket":"","peer":"` + "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" + `","silent":-9223372036854775808}`)
	f.Add(`{`)
	f.Fuzz(func(t *testing.T, text string) {
		file, err := handover.Memory("session")
		if err != nil {
			t.Fatal(err)
		}
		srv := New(nil, nil)
		sockets := map[string]*os.File{sessionPrefix + text: file}
		srv.Inherit(sockets)
		for _, all := range srv.sessionRecords {
			for _, b := range all {
				peer := forward.NewPeer(b.Peer)
				_ = peer.AddrPort()
			}
		}
		srv.InheritRest(map[string]*os.File{})
		if len(sockets) > 0 || file.Close() == nil {
			t.Errorf("%q stays open", text)
		}
	})
}
