// Package proxy is the data plane: for each service port a front end that
// accepts connections, finds an endpoint that answers, and moves the bytes.
//
// Changes come in through [Proxy.Apply], called by a source of package config.
// The life of a change is in proxy.go (what differs), frontend.go (one service
// port: listeners and portal rules that follow its configuration) and commit.go
// (what is done in the kernel, and what if that fails). The life of a connection
// is in connection.go, from accept to close; how an endpoint is found is in
// attempts.go. On Linux, TCP connections belong to loops, from accept on:
// tcp_linux.go. UDP has sessions instead, which belong to loops as well:
// udp_linux.go has the loops, udp_listener_linux.go and udp_socket_linux.go what
// clients send to, udp_session_linux.go the life of a session, and
// udp_search_linux.go how it finds an endpoint that answers.
//
// Endpoints that failed are probed by package probe, as probes.go says.
//
// Which endpoint is next is decided by package balance, how a VIP reaches a
// listener by package portal, bytes are moved by package forward, and what
// happened is kept by package trace.
//
// Locks: Proxy.mu guards the configuration and every front end's listeners and
// rules; it is held while the kernel is changed, but never by a connection (but for
// those that come to [Proxy.Serve], before they begin). A connection or a UDP
// session reads its front end's view, an immutable value behind an atomic pointer.
package proxy
