// Package admin is the HTTP interface of a proxy: the API, probes, metrics, and health checks for load
// balancers. It is read-only.
//
//	0.0.0.0:10256    /healthz /livez                  health.go
//	127.0.0.1:10249  /                                dashboard
//	                 /proxyMode /metrics /configz     server.go, metrics.go
//	                 /api/v1                          apiv1.go
//	a Service's      the health check node port       healthcheck.go
//
// Addresses, paths, answers and metric names equal kube-proxy's where kube-proxy has them, so that existing
// probes, dashboards and alerts keep working.
package admin
