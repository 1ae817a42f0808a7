package socks

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/trace"
)

// leadsAway reports whether a client requests a connection to anything other than a possible name of a Service.
func leadsAway(said []byte) bool {
	if len(said) > 0 && said[0] >= 'A' {
		return bytes.Contains(said, []byte("CONNECT")) || bytes.Contains(bytes.ToLower(said), []byte("http://"))
	}
	if len(said) < 2 || len(said) < 2+int(said[1])+5 {
		return false // the handshake fails earlier
	}
	request := said[2+int(said[1]):]
	if request[1] != 1 {
		return false
	}
	name := request[5:]
	name = name[:min(len(name), int(request[4]))]
	_, certain, _ := serviceOf(string(name), "cluster.local")
	return request[3] != 3 || !certain
}

// FuzzHandshake: the connection of any client ends soon after the client has sent its last byte.
func FuzzHandshake(f *testing.F) {
	pt, err := none.Mode.New(context.Background(), portal.Options{})
	if err != nil {
		f.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	o := proxy.Defaults()
	o.Portal, o.Log, o.Trace = pt, log, trace.NewLog(100)
	p := proxy.New(o)
	p.Apply(nil)
	s, err := Listen("127.0.0.1:0", "cluster.local", p, log)
	if err != nil {
		f.Fatal(err)
	}
	go s.Serve(f.Context())
	f.Cleanup(s.Close)

	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x0cweb.shop.svc\x00\x50"))
	f.Add([]byte("\x05\x01\x00\x05\x03\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Add([]byte("\x05\x01\x00\x05\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x09"))
	f.Add([]byte("\x04\x01\x00\x50\x7f\x00\x00\x01\x00"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: web\r\n\r\nPOST / HTTP/1.1\r\nHost: web\r\nContent-Length: 9\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		if leadsAway(said) {
			t.Skip("the request may connect to another host")
		}
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = c.Write(said)
		_ = c.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c); err != nil && err.(net.Error).Timeout() {
			t.Errorf("%q: the connection does not end", said)
		}
	})
}
