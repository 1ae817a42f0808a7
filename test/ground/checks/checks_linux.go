package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// check is a user's task. Checks run in this order, with the usher process that one of them started.
type check struct {
	name string
	run  func(g *ground) error
}

var checks = []check{
	{"portal iptables", func(g *ground) error { return g.through("iptables") }},
	{"portal nftables", func(g *ground) error { return g.through("nftables") }},
	{"portal address", func(g *ground) error { return g.through("address") }},
	{"portal none", func(g *ground) error { return g.through("none") }},
	{"check", checkManifests},
	{"start", start},
	{"TCP over IPv4", func(g *ground) error { return g.bounces("tcp4", 10) }},
	{"TCP over IPv6", func(g *ground) error { return g.bounces("tcp6", 10) }},
	{"UDP over IPv4", func(g *ground) error { return g.exchanges("udp4", 1) }},
	{"UDP over IPv6", func(g *ground) error { return g.exchanges("udp6", 1) }},
	{"UDP, 65,507 bytes", func(g *ground) error { return g.exchanges("udp", 65507) }},
	{"16 MiB, there and back", func(g *ground) error { return g.bounces("tcp", 16<<20) }},
	{"200 connections at once", atOnce},
	{"retry, refused", func(g *ground) error { return g.retries("refused") }},
	{"retry, no answer", func(g *ground) error { return g.retries("silent") }},
	{"retry, UDP", retriesUDP},
	{"endpoints in turn", func(g *ground) error { return g.usesEndpoints("two", 2) }},
	{"affinity", func(g *ground) error { return g.usesEndpoints("sticky", 1) }},
	{"half-close, by the endpoint", halfClose},
	{"reset, by the endpoint", reset},
	{"no endpoint: refused", refused},
	{"node port", nodePort},
	{"name of a Service (connect --dns)", dns},
	{"proxy (connect --socks)", socks},
	{"endpoint added and removed", changes},
	{"Service added and removed", comesAndGoes},
	{"/metrics", func(*ground) error { return fetch("http://127.0.0.1:10249/metrics", "usher_connections") }},
	{"/healthz", func(*ground) error { return fetch("http://127.0.0.1:10256/healthz", "") }},
	{"get connections", getConnections},
	{"explain", func(*ground) error { return prints("Would be tried", "explain", "tcp") }},
	{"diagnose", diagnose},
	{"take-over", takeOver},
	{"kill, start again", killed},
	{"stop: connections end first", stops},
	{"cleanup", cleanup},
	{"keeper", keeper},
	{"exec", executes},
	{"demo", demo},
}

// services are the Services that exist from the start.
var services = map[string]service{}

func (g *ground) family(v6 bool) (netip.Addr, error) {
	addr, name := g.addr4, "IPv4"
	if v6 {
		addr, name = g.addr6, "IPv6"
	}
	if !addr.IsValid() {
		return addr, fmt.Errorf("the environment has no %s address", name)
	}
	return addr, nil
}

// define writes the manifests of a Service that exists from the start.
func (g *ground) define(name, protocol string, v6 bool, spec string, endpoints ...netip.AddrPort) error {
	s := service{name: name, n: byte(1 + len(services)), protocol: protocol, endpoints: endpoints, spec: spec, v6: v6}
	services[name] = s
	return s.write(g)
}

// prepare starts the endpoints.
func (g *ground) prepare() error {
	any6 := !g.addr4.IsValid()
	for _, f := range []struct {
		suffix string
		v6     bool
	}{{"", any6}, {"4", false}, {"6", true}} {
		addr, err := g.family(f.v6)
		if err != nil {
			continue // the check reports that
		}
		tcp, err1 := echo(addr, "one")
		udp, err2 := echoUDP(addr)
		if err := errors.Join(err1, err2, g.define("tcp"+f.suffix, "TCP", f.v6, "", tcp), g.define("udp"+f.suffix, "UDP", f.v6, "", udp)); err != nil {
			return err
		}
	}
	addr := g.addr()
	one, err1 := echo(addr, "one")
	two, err2 := echo(addr, "two")
	udp, err3 := echoUDP(addr)
	_, refusing, err4 := bound(addr, unix.SOCK_STREAM)
	fd, refusingUDP, err5 := bound(addr, unix.SOCK_DGRAM)
	none, err6 := silent(addr)
	resets, err7 := serveTCP(addr, func(c *net.TCPConn) {
		_, _ = line(c)
		_ = c.SetLinger(0)
	})
	half, err8 := serveTCP(addr, func(c *net.TCPConn) {
		fmt.Fprintln(c, "one")
		_ = c.CloseWrite()
		rest, _ := io.ReadAll(c)
		heard <- string(rest)
	})
	web, err9 := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8, err9); err != nil {
		return err
	}
	if err := connect(fd, refusingUDP); err != nil {
		return err
	}
	go func() {
		_ = http.Serve(web, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "one") }))
	}()
	return errors.Join(
		g.define("refused", "TCP", any6, "", refusing, one),
		g.define("silent", "TCP", any6, "", none, one),
		g.define("retried", "UDP", any6, "", refusingUDP, udp),
		g.define("two", "TCP", any6, "", one, two),
		g.define("sticky", "TCP", any6, "  sessionAffinity: ClientIP\n", one, two),
		g.define("half", "TCP", any6, "", half),
		g.define("resets", "TCP", any6, "", resets),
		g.define("empty", "TCP", any6, ""),
		g.define("port", "TCP", any6, "  type: NodePort\n", one),
		g.define("web", "TCP", any6, "", web.Addr().(*net.TCPAddr).AddrPort()),
		g.define("changes", "TCP", any6, "", one),
	)
}

// heard is the data that the endpoint of the Service half received after it sent FIN.
var heard = make(chan string, 1)

// through starts usher with a portal, sends requests over TCP and UDP, and then removes the portal's rules.
func (g *ground) through(portal string) error {
	if len(services) == 0 {
		if err := g.prepare(); err != nil {
			return err
		}
	}
	if _, err := g.start("--portal=" + portal); err != nil {
		return err
	}
	defer func() { g.portal = "" }()
	return cmp.Or(g.serves(), g.stop(syscall.SIGINT))
}

// serves expects that TCP and UDP are served now. If not, it tries again after 1 s, when usher reports the reason.
func (g *ground) serves() error {
	try := func() error { return errors.Join(g.bounces("tcp", 10), g.exchanges("udp", 10)) }
	err := try()
	if err == nil {
		return nil
	}
	time.Sleep(time.Second)
	return cmp.Or(try(), err)
}

// flags are the flags of the usher process for most checks.
var flags = []string{"--healthz-address=127.0.0.1:10256", "--service-node-port-range=30080-30080"}

// start starts usher, which selects the portal.
func start(g *ground) error {
	_, err := g.start(flags...)
	return err
}

func checkManifests(g *ground) error { return prints("0 errors", "check", g.manifests) }

func (g *ground) bounces(name string, n int64) error {
	c, err := g.open(name)
	if err != nil {
		return err
	}
	defer c.Close()
	return bounce(c, n)
}

// open connects to a Service of echo and reads the name.
func (g *ground) open(name string) (*net.TCPConn, error) {
	to, err := g.named(name)
	if err != nil {
		return nil, err
	}
	c, err := dial(to)
	if err != nil {
		return nil, err
	}
	_, err = line(c)
	return c, err
}

// named returns the address on which clients reach a Service.
func (g *ground) named(name string) (string, error) {
	s, ok := services[name]
	if !ok {
		_, err := g.family(strings.HasSuffix(name, "6"))
		return "", err
	}
	return g.at(s)
}

func (g *ground) exchanges(name string, n int) error {
	to, err := g.named(name)
	if err != nil {
		return err
	}
	return exchange(to, n)
}

func atOnce(g *ground) error {
	to, err := g.named("tcp")
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	failed := make([]error, 200)
	for i := range failed {
		running.Go(func() {
			var c *net.TCPConn
			if c, failed[i] = dial(to); failed[i] == nil {
				defer c.Close()
				_, failed[i] = line(c)
			}
			if failed[i] == nil {
				failed[i] = bounce(c, 1000)
			}
		})
	}
	running.Wait()
	return cmp.Or(failed...)
}

// names requests the names of a Service's endpoints.
func (g *ground) names(name string, n int) (all []string, err error) {
	to, err := g.named(name)
	for ; n > 0 && err == nil; n-- {
		var one string
		one, err = ask(to)
		all = append(all, one)
	}
	return all, err
}

func (g *ground) retries(name string) error {
	if _, err := g.names(name, 4); err != nil {
		return err
	}
	got, err := g.get(name)
	if err == nil && got.Totals.Retries == 0 {
		err = errors.New("no retry is counted")
	}
	return err
}

func retriesUDP(g *ground) error {
	return errors.Join(g.exchanges("retried", 10), g.exchanges("retried", 10))
}

// usesEndpoints expects that 10 connections use this number of endpoints.
func (g *ground) usesEndpoints(name string, want int) error {
	all, err := g.names(name, 10)
	slices.Sort(all)
	if got := len(slices.Compact(all)); err == nil && got != want {
		err = fmt.Errorf("10 connections used %d endpoints, not %d", got, want)
	}
	return err
}

func halfClose(g *ground) error {
	c, err := g.open("half")
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("not the end: %v", err)
	}
	if _, err := c.Write([]byte("after the end")); err != nil {
		return plain(err)
	}
	if err := c.CloseWrite(); err != nil {
		return plain(err)
	}
	select {
	case got := <-heard:
		if got != "after the end" {
			return fmt.Errorf("the endpoint got %q", got)
		}
		return nil
	case <-time.After(*patience):
		return errors.New("the endpoint got nothing")
	}
}

func reset(g *ground) error {
	to, err := g.named("resets")
	if err != nil {
		return err
	}
	c, err := dial(to)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintln(c, "do")
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("no reset: %w", plain(err))
	}
	return nil
}

func refused(g *ground) error {
	s := services["empty"]
	at := netip.AddrPortFrom(vip(s.v6, s.n), port).String()
	if g.portal == "none" {
		got, err := g.get("empty")
		if err != nil || got.Ports[0].Listener == "" {
			return err // usher does not listen: there is no address for clients
		}
		at = got.Ports[0].Listener
	}
	if _, err := dial(at); !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("not refused: %w", err)
	}
	return nil
}

func nodePort(g *ground) error {
	if g.portal == "none" {
		return errors.New("--portal=none serves no node ports")
	}
	_, err := ask(netip.AddrPortFrom(g.addr(), 30080).String())
	return err
}

// connected runs check while 'kubectl usher connect' runs alongside usher.
func (g *ground) connected(check func() error, flags ...string) error {
	p, err := launchProgram(kubectlUsher(), append([]string{"connect", "--manifests", g.manifests, "--admin-address=", "--log-format=text"}, flags...)...)
	if err != nil {
		return err
	}
	defer func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_, _ = p.end()
	}()
	if err := eventually(check); err != nil {
		return cmp.Or(errorOf(p.reason()), err)
	}
	return nil
}

// errorOf returns an error with the given text, or nil for "".
func errorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

func dns(g *ground) error {
	return g.connected(func() error { return askName() }, "--socks=", "--dns=127.0.0.1:10053")
}

// askName resolves the name of a Service, whose address is the same whether it is reachable or not.
func askName() error {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", "127.0.0.1:10053")
	}}
	ctx, cancel := context.WithTimeout(context.Background(), *patience)
	defer cancel()
	s := services["tcp"]
	all, err := r.LookupNetIP(ctx, "ip", "tcp.default.svc.cluster.local.")
	if err == nil && !slices.ContainsFunc(all, func(a netip.Addr) bool { return a.Unmap() == vip(s.v6, s.n) }) {
		err = fmt.Errorf("the name has the addresses %v", all)
	}
	return err
}

func socks(g *ground) error {
	return g.connected(func() error {
		return fetchBy(&http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "socks5", Host: "127.0.0.1:10080"})}, fmt.Sprintf("http://web.default:%d/", port), "one")
	}, "--socks=127.0.0.1:10080")
}

func fetch(url, contains string) error { return fetchBy(&http.Transport{}, url, contains) }

func fetchBy(t *http.Transport, url, contains string) error {
	defer t.CloseIdleConnections()
	response, err := (&http.Client{Transport: t, Timeout: *patience}).Get(url)
	if err != nil {
		return plain(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(body), contains)) {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return err
}

func changes(g *ground) error {
	s := services["changes"]
	three, err := echo(g.addr(), "three")
	if err != nil {
		return err
	}
	s.endpoints = []netip.AddrPort{three}
	if err := s.write(g); err != nil {
		return err
	}
	return eventually(func() error {
		all, err := g.names("changes", 1)
		if err == nil && all[0] != "three" {
			err = errors.New("the endpoint that was removed still serves")
		}
		return err
	})
}

func comesAndGoes(g *ground) error {
	s := services["two"]
	s.name, s.n = "late", 200
	if err := s.write(g); err != nil {
		return err
	}
	var at string
	if err := eventually(func() (err error) {
		if at, err = g.at(s); err == nil {
			_, err = ask(at)
		}
		return err
	}); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(g.manifests, "late.yaml")); err != nil {
		return err
	}
	return eventually(func() error {
		if c, err := net.DialTimeout("tcp", at, time.Second); err == nil {
			c.Close()
			return errors.New("the Service that was removed still serves")
		}
		return nil
	})
}

func getConnections(g *ground) error {
	c, err := g.open("tcp")
	if err != nil {
		return err
	}
	defer c.Close()
	out, err := command("get", "connections", "-A", "-o", "json")
	if err != nil {
		return err
	}
	var list struct{ Items []any }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return errors.New("an open connection is not listed")
	}
	return nil
}

// prints runs usher and expects that it prints the given text.
func prints(expected string, args ...string) error { return printsOf(*usher, expected, args...) }

func printsOf(program, expected string, args ...string) error {
	out, err := commandOf(program, args...)
	if err == nil && !strings.Contains(out, expected) {
		err = fmt.Errorf("%s %s does not print %q", filepath.Base(program), args[0], expected)
	}
	return err
}

// demo does not return why the demo fails, since that depends on the errors of its requests. The demo's output is
// written to standard error.
func demo(*ground) error {
	out, err := command("demo", "--once")
	if err != nil || !strings.Contains(out, "requests had the expected outcome") {
		fmt.Fprintln(os.Stderr, out, err)
		return errors.New("not all requests had the expected outcome")
	}
	return nil
}

// diagnose expects only notes, for a Service that no check has kept busy: an emulated machine is slow with busy ones.
func diagnose(*ground) error {
	out, err := command("diagnose", "port")
	if err == nil && !strings.Contains(out, "Checks of") {
		err = errors.New("usher diagnose does not say what it checked")
	}
	if finding, _, ok := strings.Cut(out, "\n    evidence:"); err != nil && ok {
		err = errors.New(strings.Join(strings.Fields(strings.Replace(finding, "\n", ": ", 1)), " "))
	}
	return err
}

func takeOver(g *ground) error {
	to, err := g.named("tcp")
	if err != nil {
		return err
	}
	open, err := g.open("tcp")
	if err != nil {
		return err
	}
	defer open.Close()
	first := g.running
	if _, err := g.start(append(flags, "--take-over")...); err != nil {
		g.running = first // it still serves
		return err
	}
	if _, err := ask(to); err != nil {
		return err
	}
	if err := bounce(open, 1000); err != nil {
		return fmt.Errorf("a connection of the predecessor: %w", err)
	}
	open.Close()
	code, err := first.end()
	if err == nil && code != 0 {
		err = fmt.Errorf("the predecessor's exit code is %d", code)
	}
	return err
}

func killed(g *ground) error {
	if err := g.stop(syscall.SIGKILL); err != nil {
		return err
	}
	if err := start(g); err != nil {
		return err
	}
	return g.serves()
}

func stops(g *ground) error {
	defer func() { _ = g.stop(syscall.SIGKILL) }() // the next checks require that no usher process runs
	open, err := g.open("tcp")
	if err != nil {
		return err
	}
	defer open.Close()
	p := g.running
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := eventually(func() error {
		if !strings.Contains(p.log.String(), "Stopping") {
			return errors.New("usher does not stop")
		}
		return nil
	}); err != nil {
		return err
	}
	if err := bounce(open, 1000); err != nil {
		return err
	}
	open.Close()
	return g.stop(syscall.SIGTERM)
}

func cleanup(g *ground) error {
	if _, err := command("cleanup"); err != nil {
		return err
	}
	if err := prints(`"total": 0`, "get", "portals", "-A", "-o", "json"); err != nil {
		return err
	}
	s := services["tcp"]
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(vip(s.v6, s.n), port).String(), time.Second)
	if err == nil {
		c.Close()
		return errors.New("a VIP still answers")
	}
	return nil
}

// keeper kills the usher process started by a keeper: clients that connect meanwhile wait.
func keeper(g *ground) error {
	defer func() { _ = g.stop(syscall.SIGKILL) }()
	if _, err := g.start(append(flags, "--keeper")...); err != nil {
		return err
	}
	to, err := g.named("tcp")
	if err != nil {
		return err
	}
	child, err := childOf(g.running.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		return err
	}
	for range 20 {
		if _, err := ask(to); err != nil {
			return err
		}
	}
	return g.stop(syscall.SIGINT)
}

// childOf returns the process whose parent is pid.
func childOf(pid int) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // not a process, or one that has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			return strconv.Atoi(e.Name())
		}
	}
	return 0, errors.New("the keeper has no child")
}

// executes sends a request to a Service by name in `kubectl usher exec`.
func executes(g *ground) error {
	self := os.Args[0]
	if exe, err := os.Executable(); err == nil {
		self = exe
	}
	return printsOf(kubectlUsher(), "one", "exec", "--manifests", g.manifests, "--", self, "-client", fmt.Sprintf("tcp.default:%d", port))
}
