// Package monitoring tests what deploy/monitoring has for Prometheus and Grafana, with
// Debian's Prometheus: promtool runs the rules on made-up samples (testdata/alerts_test.yaml), and a
// Prometheus watches an usher to which everything happens that there is an alert for.
//
// A quarter of an hour is a quarter of a minute there: all times in the rules are divided by 60, down to ten seconds.
package monitoring
