package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/usherproxy/usher/proxy/admin"
)

// adminFlags say where HTTP is served.
type adminFlags struct {
	admin, healthz string
	hardFail       bool
}

// defaultAdminAddress is the default of --admin-address.
const defaultAdminAddress = "127.0.0.1:10249"

func (f *adminFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.admin, "admin-address", defaultAdminAddress, "`host:port` for the dashboard, /api, /metrics, /proxyMode, /configz; empty means none")
	flags.StringVar(&f.healthz, "healthz-address", "0.0.0.0:10256", "`host:port` for /healthz and /livez; empty means none, which is the default with --manifests and with --via=portforward or auto")
	flags.BoolVar(&f.hardFail, "bind-address-hard-fail", false, "end if one of these addresses cannot be had, instead of going on without it")
}

// startServers starts the HTTP servers. An address that is taken, perhaps by an
// usher that is about to end, is tried again until it is free.
func (s *server) startServers(ctx context.Context) error {
	api := admin.NewAPI(s.proxy, admin.APIOptions{Version: version, Demo: s.demo})
	s.metrics = admin.NewMetrics(s.proxy, s.health, version)
	s.metrics.Watch(api, s.accessLog, s.names)
	s.proxy.OnSync = s.metrics.Synced
	if s.reach.Load() != nil {
		clientmetrics.Register(clientmetrics.RegisterOpts{RequestLatency: s.metrics, RequestResult: s.metrics})
	}
	handler := admin.Handler(api, s.health, s.metrics.Registry, s.settings)
	if s.wrapAdmin != nil {
		handler = s.wrapAdmin(handler)
	}
	return errors.Join(
		s.startServer(ctx, "healthz-address", s.admin.healthz, admin.HealthHandler(s.health), admin.MaxClients),
		s.startServer(ctx, "admin-address", s.admin.admin, admin.Guard(s.admin.admin, handler), admin.MaxAdminClients),
	)
}

// adminAddress returns where the API is served, "" if it is not. It is for a
// server without --healthz-address.
func (s *server) adminAddress() string {
	s.serversMu.Lock()
	defer s.serversMu.Unlock()
	if len(s.servers) == 0 {
		return ""
	}
	return s.servers[0].Addr().String()
}

func (s *server) startServer(ctx context.Context, flag, address string, handler http.Handler, clients int) error {
	if address == "" {
		return nil
	}
	err := s.tryServer(address, handler, clients)
	switch {
	case err == nil:
		return nil
	case s.admin.hardFail && !s.takeOver:
		return fmt.Errorf("--%s: %w", flag, err)
	}
	s.log.WithError(err).Warnf("Going on without the server of --%s for now", flag)
	go func() {
		ticker := time.NewTicker(500 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if s.tryServer(address, handler, clients) == nil {
				s.log.Infof("The server of --%s is there now", flag)
				return
			}
		}
	}()
	return nil
}

func (s *server) tryServer(address string, handler http.Handler, clients int) error {
	s.serversMu.Lock()
	defer s.serversMu.Unlock()
	if s.serversOver {
		return nil
	}
	r, err := admin.Serve(address, handler, clients)
	if err == nil {
		s.servers = append(s.servers, r)
	}
	return err
}

func (s *server) closeServers() {
	s.serversMu.Lock()
	defer s.serversMu.Unlock()
	s.serversOver = true
	for _, r := range s.servers {
		r.Close()
	}
	s.servers = nil
}
