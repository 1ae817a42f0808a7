package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/usherproxy/usher/proxy/admin"
)

// servers are the HTTP servers.
type servers struct {
	mu   sync.Mutex               // guards what follows
	all  map[string]*admin.Server // by setting
	over bool                     // they have been closed
}

// The settings of the servers.
const (
	adminSetting   = "admin-address"
	healthzSetting = "healthz-address"
)

// startServers starts the HTTP servers, if there are to be any.
func (d *Daemon) startServers(ctx context.Context) error {
	c := &d.config
	if c.AdminAddress == "" && c.HealthzAddress == "" {
		return nil
	}
	api := admin.NewAPI(d.proxy, admin.APIOptions{Version: c.Version, Demo: c.Demo != nil})
	d.metrics = admin.NewMetrics(d.proxy, d.health, c.Version)
	d.metrics.Watch(api, d.accessLog, d.names)
	d.proxy.OnSync = d.metrics.Synced
	if d.reach.Load() != nil {
		clientmetrics.Register(clientmetrics.RegisterOpts{RequestLatency: d.metrics, RequestResult: d.metrics})
	}
	handler := admin.Handler(api, d.health, d.metrics.Registry, c.Settings)
	if c.Demo != nil {
		handler = c.Demo.Handler(handler)
	}
	err := errors.Join(
		d.startServer(ctx, healthzSetting, c.HealthzAddress, admin.HealthHandler(d.health), admin.MaxClients),
		d.startServer(ctx, adminSetting, c.AdminAddress, admin.Guard(c.AdminAddress, handler), admin.MaxAdminClients),
	)
	if err != nil {
		d.servers.close()
	}
	return err
}

// startServer starts one. An address that is taken, perhaps by an usher that is about
// to end, is tried again until it is free.
func (d *Daemon) startServer(ctx context.Context, setting, address string, handler http.Handler, clients int) error {
	if address == "" {
		return nil
	}
	err := d.servers.serve(setting, address, handler, clients)
	switch {
	case err == nil:
		return nil
	case d.config.HardFail && !d.config.TakeOver:
		return fmt.Errorf("--%s: %w", setting, err)
	}
	d.log.WithError(err).Warnf("Going on without the server of --%s for now", setting)
	d.workers.Go(func() {
		every(ctx, 500*time.Millisecond, func() (goOn bool) {
			if d.servers.serve(setting, address, handler, clients) != nil {
				return true
			}
			d.log.Infof("The server of --%s is there now", setting)
			return false
		})
	})
	return nil
}

func (s *servers) serve(setting, address string, handler http.Handler, clients int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil
	}
	server, err := admin.Serve(address, handler, clients)
	if err != nil {
		return err
	}
	if s.all == nil {
		s.all = map[string]*admin.Server{}
	}
	s.all[setting] = server
	return nil
}

// adminAddress returns where the API is served, "" if it is not.
func (s *servers) adminAddress() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if server, there := s.all[adminSetting]; there {
		return server.Addr().String()
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
