// Package admin is the HTTP face of a proxy, for probes, metrics and load
// balancers. It reads and changes nothing.
//
//	0.0.0.0:10256    /healthz /livez                  health.go
//	127.0.0.1:10249  /                                dashboard
//	                 /proxyMode /metrics /configz     server.go, metrics.go
//	                 /api/v1/portals                  portals.go
//	a Service's      the health check node port       healthcheck.go
//
// Addresses, paths, answers and the names of metrics are kube-proxy's where
// kube-proxy has the same, so that probes, dashboards and alerts go on working.
package admin
