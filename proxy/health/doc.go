// Package health probes endpoints: failed ones, to learn when they recover, and all endpoints of Services that request
// probes.
//
// A [Prober] makes two kinds of probes. A recheck probes an endpoint that is in quarantine because clients' attempts
// failed. The wait before a recheck doubles with each failure. A check is a probe that the Service requests, for each
// endpoint that clients may use, one interval after the previous probe ended. Each kind has its own rate limit and
// order. Rechecks with the shortest wait come first, so that an endpoint that has just failed does not wait for
// thousands that have been dead for long. Checks that have been due for longest come first. Namespaces take turns in
// each kind. Package balance decides how a result changes the endpoint's state.
package health
