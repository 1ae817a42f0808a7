// Package api is the admin API in Go: what usher answers under /api/v1, as plain
// structs that become JSON. The server, the terminal commands and the tests
// share it. openapi.json says the same for programs in other languages; it is
// made from this package (make generate). cluster.go has what kubectl usher dashboard
// answers, which asks several ushers, and cluster.json describes that.
//
// What holds everywhere:
//
//   - The API only tells. Methods other than GET and HEAD are answered by 405.
//   - Services are written "namespace/name", addresses "10.96.0.10:80" and
//     "[fd00::1]:80", Pods "namespace/name".
//   - Times are RFC 3339. Durations have their unit in the name: Ms is
//     milliseconds, with fractions, Seconds is seconds.
//   - What is not known, or does not apply, is left out. Lists are never null.
//   - Counts are since the start of the process, or, for a service port or an
//     endpoint, since it is known. [Status.Instance] tells one process from the
//     next.
//   - Fields and values of enumerations are added over time and never renamed; a
//     reader skips what it does not know.
//   - Errors have the body [Error].
package api
