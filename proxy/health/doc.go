// Package health probes endpoints: failed ones, to learn when they recover, and the usable endpoints of Services for
// which an annotation or --probe requests probes.
//
// A [Prober] makes two kinds of probes. A recheck probes an endpoint that is in quarantine because clients' attempts
// failed. The delay before a recheck doubles with each failure, up to --quarantine-max. A check is a requested probe.
// Each endpoint is checked one interval after its previous check ended. Each kind has its own rate limit and order.
// Within each kind, namespaces take turns. Within a namespace, rechecks with the shortest delay come first. So an
// endpoint that has just failed is not queued behind thousands that failed long ago. Of the checks, the one that has
// been due for longest comes first. Package balance decides how a result changes the endpoint's state.
package health
