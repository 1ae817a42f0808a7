package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/stream"
	"github.com/usherproxy/usher/proxy/trace"
	"github.com/usherproxy/usher/test/walk/recorder"
)

// times is the number of recordings of each event.
const times = 9

// makeDataEvents records an endpoint that is added to a TCP Service, a datagram with its answer, and a connection. The
// order matters since timers of an earlier event run during the next one, and an endpoint leaves none.
func makeDataEvents(dir string) {
	runtime.GOMAXPROCS(1) // goroutines run in the order in which they become ready
	ctx := context.Background()
	p, err := none.Mode.New(ctx, portal.Options{})
	must(err)
	o := proxy.Defaults()
	o.Portal, o.Log, o.Trace = p, logrus.New(), trace.NewLog(20000)
	o.Trace.Keep(10000)
	o.Slow = 500 * time.Millisecond
	o.SCTP = stream.SCTPOff // not every kernel has it
	usher := proxy.New(o)

	endpoint := echoTCP()
	web := service("web", config.TCP, "10.96.0.1", endpoint)
	two := service("web", config.TCP, "10.96.0.1", endpoint, echoTCP())
	record(dir, "change",
		func() { usher.Apply([]config.Service{web}) },
		func() { usher.Apply([]config.Service{two}) })

	usher.Apply([]config.Service{web, service("dns", config.UDP, "10.96.0.2", echoUDP())})
	listeners := map[string]string{}
	for _, s := range usher.Status() {
		listeners[s.Port.ID.Service] = s.Listeners[0].String()
	}
	nothing := func() {}
	record(dir, "udp", nothing, func() { ask("udp", listeners["dns"]) })
	record(dir, "tcp", nothing, func() { ask("tcp", listeners["web"]) })
}

// record writes recordings of the calls in event.
func record(dir, name string, before, event func()) {
	for i := range times {
		before()
		time.Sleep(200 * time.Millisecond) // for late work of earlier events
		recorder.Start()
		event()
		time.Sleep(100 * time.Millisecond) // for the proxy's work after the client closes
		text, err := json.Marshal(recorder.Stop())
		must(err)
		must(os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.json", name, i)), text, 0o600))
	}
}

// ask sends 5 bytes and reads 5. The client closes TCP connections cleanly.
func ask(network, address string) {
	c, err := net.Dial(network, address)
	must(err)
	fmt.Fprint(c, "hello")
	_, err = io.ReadFull(c, make([]byte, 5))
	must(err)
	if tcp, ok := c.(*net.TCPConn); ok {
		must(tcp.CloseWrite())
		_, err = io.Copy(io.Discard, c)
		must(err)
	}
	must(c.Close())
}

func service(name string, protocol config.Protocol, vip string, endpoints ...netip.AddrPort) config.Service {
	port := config.ServicePort{
		ID:       config.PortID{Namespace: "default", Service: name, Port: "main", Family: config.IPv4},
		Protocol: protocol,
		Policy:   config.DefaultPolicy(),
		VIPs:     []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr(vip), Port: 80}},
	}
	for _, e := range endpoints {
		port.Endpoints = append(port.Endpoints, config.Endpoint{Addr: e, Ready: true})
	}
	port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
	return config.Service{Name: types.NamespacedName{Namespace: "default", Name: name}, Ports: []config.ServicePort{port}}
}

func echoTCP() netip.AddrPort {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() {
		for {
			c, err := l.Accept()
			must(err)
			go func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err != nil {
					log.Print(err)
				}
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

func echoUDP() netip.AddrPort {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(err)
	go func() {
		var b [2048]byte
		for {
			n, from, err := c.ReadFrom(b[:])
			must(err)
			_, err = c.WriteTo(b[:n], from)
			must(err)
		}
	}()
	return netip.MustParseAddrPort(c.LocalAddr().String())
}
