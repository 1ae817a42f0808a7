package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
)

type servers struct {
	mu   sync.Mutex              // guards the fields below
	all  map[string]*http.Server // by setting
	over bool                    // the servers have been closed
}

// Settings with the addresses of the servers.
const (
	adminSetting   = "admin-address"
	healthzSetting = "healthz-address"
)

// startServers starts the configured HTTP servers.
func (d *Daemon) startServers(ctx context.Context) error {
	c := &d.config
	if c.AdminAddress == "" && c.HealthzAddress == "" {
		return nil
	}
	o := admin.APIOptions{Version: c.Version, Policy: c.translation().Policy, Demo: c.Demo != nil, Reports: d.reports.All, Health: d.health, AccessLog: d.accessLog, Conntrack: d.conntrack, HealthChecks: d.healthChecks}
	if o.Source = api.SourceCluster; len(c.Manifests) > 0 {
		o.Source = api.SourceFiles
	}
	if c.Tunnel != nil {
		o.Via = c.Tunnel.Name
	}
	api := admin.NewAPI(d.proxy, o)
	var queries func() map[[2]string]int64
	if c.Names != nil {
		queries = c.Names.Queries
	}
	d.metrics = admin.NewMetrics(api, queries)
	d.proxy.OnSync = d.metrics.Synced
	if d.reach.Load() != nil {
		clientmetrics.Register(clientmetrics.RegisterOpts{RequestLatency: d.metrics, RequestResult: d.metrics})
	}
	handler := admin.Handler(api, d.metrics.Registry, c.Settings)
	if c.Demo != nil {
		handler = c.Demo(handler)
	}
	err := errors.Join(
		d.startServer(ctx, healthzSetting, c.HealthzAddress, admin.HealthHandler(d.health), admin.MaxClients),
		d.startServer(ctx, adminSetting, c.AdminAddress, admin.Guard(c.AdminAddress, handler), admin.MaxAdminClients),
	)
	if err != nil {
		d.servers.close()
		return err
	}
	d.workers.Go(func() { api.Run(ctx) })
	return nil
}

// startServer starts one server. If it cannot listen, perhaps because an usher process that is
// exiting uses the address, it retries in the background until ctx ends. With HardFail and without
// TakeOver, it returns the error instead.
func (d *Daemon) startServer(ctx context.Context, setting, address string, handler http.Handler, clients int) error {
	if address == "" {
		return nil
	}
	listen := func() (*http.Server, error) { return admin.Serve(address, handler, clients) }
	if setting == healthzSetting {
		left := leftListener(d.kept(fdstore.HealthName), address)
		listen = func() (*http.Server, error) {
			if left != nil && d.mustSucceed() && answers(left.Addr().String()) {
				return nil, errPredecessor
			}
			l := left
			left = nil
			return d.serveHealth(l, address, handler, clients)
		}
	}
	err := d.servers.serve(setting, listen)
	switch {
	case err == nil:
		return nil
	case d.config.HardFail && !d.config.TakeOver:
		return fmt.Errorf("--%s: %w", setting, err)
	}
	log := d.log.WithField("flag", "--"+setting)
	failed := !errors.Is(err, errPredecessor)
	if failed {
		log.WithError(err).Warn("Cannot listen; retrying")
	}
	d.workers.Go(func() {
		served := func(context.Context) (bool, error) { return d.servers.serve(setting, listen) == nil, nil }
		if wait.PollUntilContextCancel(ctx, 500*time.Millisecond, false, served) == nil && failed {
			log.Info("Listening after retries")
		}
	})
	return nil
}

// answers reports whether a process answers health checks at address.
func answers(address string) bool {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + address + "/livez")
	if err != nil {
		return false
	}
	answer.Body.Close()
	return true
}

// errPredecessor means that the process that this one replaces still answers on their shared listener. Health checks
// must reach that process until this one serves.
var errPredecessor = errors.New("the previous instance still answers")

// serveHealth serves health checks, like admin.Serve. l is the listener of an earlier process; if it is nil,
// serveHealth opens one and stores it with the manager.
func (d *Daemon) serveHealth(l net.Listener, address string, handler http.Handler, clients int) (*http.Server, error) {
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", address); err != nil {
			return nil, err
		}
		m := d.config.Manager
		m.Remove(fdstore.HealthName)
		m.Put(fdstore.HealthName, func() *os.File {
			file, _ := l.(*net.TCPListener).File() // nil if it is closed
			return file
		})
	}
	return admin.ServeOn(l, handler, clients), nil
}

// leftListener returns the listener that an earlier process left, or nil if it does not
// listen at address. It closes file.
func leftListener(file *os.File, address string) net.Listener {
	if file == nil {
		return nil
	}
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil
	}
	if at, err := net.ResolveTCPAddr("tcp", address); err == nil {
		if is, ok := l.Addr().(*net.TCPAddr); ok && is.Port == at.Port && (is.IP.Equal(at.IP) || is.IP.IsUnspecified() && (len(at.IP) == 0 || at.IP.IsUnspecified())) {
			return l
		}
	}
	l.Close()
	return nil
}

func (s *servers) serve(setting string, listen func() (*http.Server, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil
	}
	server, err := listen()
	if err != nil {
		return err
	}
	if s.all == nil {
		s.all = map[string]*http.Server{}
	}
	s.all[setting] = server
	return nil
}

// adminAddress returns the address of the API, "" if it is not served.
func (s *servers) adminAddress() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if server, there := s.all[adminSetting]; there {
		return server.Addr
	}
	return ""
}

func (s *servers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, server := range s.all {
		server.Close()
	}
	clear(s.all)
}
