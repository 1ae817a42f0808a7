// Package monitoring tests deploy/monitoring, for Prometheus and Grafana, with Debian's Prometheus. promtool runs the
// rules on synthetic samples (testdata/alerts_test.yaml). In a second test, Prometheus monitors an usher process that
// meets every fault for which there is an alert.
//
// The second test divides all times in the rules by 60, with a minimum of 10 s: 15 minutes become 15 s.
package monitoring
