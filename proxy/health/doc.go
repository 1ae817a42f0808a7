// Package health probes endpoints, so that clients do not have to detect failed ones.
//
// A [Prober] makes two kinds of probes. A recheck probes an endpoint that is in quarantine because clients' attempts
// failed. The wait before a recheck doubles with each failure. A check is a probe that the Service requests, for each
// endpoint that clients may use, at a fixed interval. Each kind has its own rate limit and order. Rechecks with the
// shortest wait come first, so that an endpoint that has just failed does not wait for thousands that have been dead
// for long. Checks that have been due for longest come first. Both are shared fairly between namespaces. Package balance
// decides how a result changes the endpoint's state.
package health
