package demo

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// backends are the demo's servers, in the order of services.
type backends []*backend

// backend is one of the demo's servers, an endpoint of its Service. It keeps its
// address with every fault.
type backend struct {
	service service
	name    string // of the Pod that it represents
	addr    netip.AddrPort

	mu     sync.Mutex // guards the fields below
	fault  fault
	server faultyServer
}

// faultyServer is a server that accepts faults. Calls must not be concurrent.
type faultyServer interface {
	addr() netip.AddrPort
	// setFault sets the server's fault; the zero value repairs it. If it fails, the server has stopped.
	setFault(fault) error
	close()
}

// startBackends starts the demo's servers on loopback ports.
func startBackends() (backends, error) {
	var list backends
	for _, s := range services {
		for i, fault := range s.backends {
			b, err := startBackend(s, s.server(i), fault)
			if err != nil {
				list.stop()
				return nil, err
			}
			list = append(list, b)
		}
	}
	return list, nil
}

func startBackend(s service, name, fault string) (b *backend, err error) {
	b = &backend{service: s, name: name}
	if s.protocol == corev1.ProtocolUDP {
		b.server, err = startEcho(name)
	} else {
		b.server, err = startHTTP(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.addr = b.server.addr()
	err = b.setFault(fault)
	if errors.Is(err, errors.ErrUnsupported) {
		err = b.setFault(api.DemoRefuse) // the nearest equivalent on this system
	}
	if err != nil {
		b.server.close()
		return nil, err
	}
	return b, nil
}

func (list backends) stop() {
	for _, b := range list {
		b.mu.Lock()
		b.server.close()
		b.mu.Unlock()
	}
}

// find returns the server with this address, or with this Pod name, with or
// without namespace; nil if there is none.
func (list backends) find(name string) *backend {
	short := strings.TrimPrefix(name, corev1.NamespaceDefault+"/")
	for _, b := range list {
		if b.addr.String() == name || b.name == short {
			return b
		}
	}
	return nil
}

// setFault sets the fault of b; "" repairs it.
func (b *backend) setFault(text string) error {
	f, err := parseFault(text, b.service.protocol, b.name)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.server.setFault(f); err != nil {
		_ = b.server.setFault(b.fault) // it has stopped
		return fmt.Errorf("%s: %w", b.name, err)
	}
	b.fault = f
	return nil
}

// describe returns the description of b for the API.
func (b *backend) describe() api.DemoEndpoint {
	b.mu.Lock()
	defer b.mu.Unlock()
	return api.DemoEndpoint{
		Endpoint: b.addr.String(),
		Pod:      corev1.NamespaceDefault + "/" + b.name,
		Service:  corev1.NamespaceDefault + "/" + b.service.name,
		Protocol: string(b.service.protocol),
		Does:     b.fault.String(),
		Broken:   b.fault.text,
		Can:      Faults(b.service.protocol),
	}
}
