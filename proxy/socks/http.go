package socks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/usherproxy/usher/proxy/search"
)

// webClients passes the clients that speak HTTP to an http.Server, as its listener.
type webClients struct {
	net.Listener // for its address
	clients      chan net.Conn
	ctx          context.Context // ends with Server.Close
}

// serve returns when the connection has ended.
func (w *webClients) serve(c *client) {
	c.stopAfterFunc()
	_ = c.SetDeadline(time.Time{}) // the http.Server sets later ones
	c.stopAfterFunc = context.AfterFunc(w.ctx, func() { c.Close() })
	defer c.stopAfterFunc()
	select {
	case w.clients <- c:
	case <-w.ctx.Done():
	}
	<-c.closed
}

func (w *webClients) Accept() (net.Conn, error) {
	select {
	case c := <-w.clients:
		return c, nil
	case <-w.ctx.Done():
		return nil, net.ErrClosed
	}
}

// webServer returns the server for HTTP clients. A client's connection serves several plain requests; each makes its
// own connection to the destination, and so may get another endpoint.
func (s *Server) webServer() *http.Server {
	silent := log.New(io.Discard, "", 0) // drops errors of clients that do not speak HTTP, or disconnect
	plain := &httputil.ReverseProxy{
		Rewrite:       leave,
		Transport:     &http.Transport{DialContext: s.dialPlain, DisableKeepAlives: true, DisableCompression: true},
		FlushInterval: -1, // flush data immediately
		ErrorLog:      silent,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.logFailure(r.RemoteAddr, err)
			http.Error(w, failure(r.URL.Host, err), statusOf(err))
		},
	}
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodConnect:
				s.connectWeb(w, r)
			case r.URL.Scheme == "http" && r.URL.Host != "":
				plain.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), fromKey{}, r.RemoteAddr)))
			default:
				http.Error(w, "This is a proxy of usher's, for CONNECT and for requests such as GET http://web.default/", http.StatusBadRequest)
			}
		}),
		ReadHeaderTimeout: requestTime,
		IdleTimeout:       requestTime,
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ErrorLog:          silent,
	}
}

// fromKey is the context key of the client's address.
type fromKey struct{}

// leave leaves a request as the client made it, except for headers about the client's own connection.
func leave(r *httputil.ProxyRequest) {
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = values
		}
	}
}

// dialPlain connects a plain request to its destination.
func (s *Server) dialPlain(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, err := split(address)
	if err != nil {
		return nil, err
	}
	vip, err := s.routeOf(host, port)
	switch {
	case err != nil:
		return nil, err
	case !vip.IsValid():
		return s.dialDirectly(ctx, host, port)
	}
	near, far, err := pair()
	if err != nil {
		return nil, err
	}
	s.proxy.Serve(far, netip.MustParseAddrPort(ctx.Value(fromKey{}).(string)), vip)
	return near, nil
}

// pair returns the two sides of a connection within this process: the data plane, which serves Services, needs
// connections of the kernel.
func pair() (near, far *net.TCPConn, err error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if near, err = net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr)); err != nil {
		return nil, nil, err
	}
	for { // other processes may have connected, too
		if far, err = l.AcceptTCP(); err != nil {
			near.Close()
			return nil, nil, err
		}
		if far.RemoteAddr().String() == near.LocalAddr().String() {
			return near, far, nil
		}
		far.Close()
	}
}

// connectWeb answers CONNECT of HTTP. It returns when the connection has ended.
func (s *Server) connectWeb(w http.ResponseWriter, r *http.Request) {
	host, port, err := split(r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	c := conn.(*client)
	c.unread(buffered.Reader)
	err = s.tunnel(c, host, port, func(_ net.Addr, err error) error {
		if err == nil {
			_, err = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
			return err
		}
		text := failure(r.Host, err) + "\n"
		_, err = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
			statusOf(err), http.StatusText(statusOf(err)), len(text), text)
		return err
	})
	if err != nil {
		s.logFailure(r.RemoteAddr, err)
	}
}

// split returns a host, without IPv6 brackets, and a port.
func split(address string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%s: invalid port: must be 0 to 65535", address)
	}
	return host, uint16(n), nil
}

// failure returns the error message for a client.
func failure(host string, err error) string {
	why := search.Plain(err).Error()
	if errors.Is(err, syscall.ECONNRESET) {
		why += "; for a Service: every attempt failed, or its endpoint reset the connection"
	}
	return "usher: " + host + ": " + why
}

// statusOf returns the HTTP status for err, with which connecting failed.
func statusOf(err error) int {
	var late net.Error
	switch {
	case errors.Is(err, errRefused):
		return http.StatusServiceUnavailable
	case errors.As(err, &late) && late.Timeout():
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}
