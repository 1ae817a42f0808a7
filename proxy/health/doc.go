// Package health probes endpoints, so that clients need not find out whether they answer.
//
// A [Prober] makes two kinds of probes. A recheck is of an endpoint that is in quarantine since attempts of
// clients failed, after a time that doubles with each failure. A check is one that the Service asks for, of all
// endpoints that clients may use and after a fixed interval. They differ in their rate and in which of those that
// are due come first: of rechecks those after the shortest wait, so that an endpoint that has just failed does not
// wait for thousands that have been dead for long; of checks those that have been due for longest. Both are
// shared fairly between namespaces. Package balance decides what a result means for the endpoint.
package health
