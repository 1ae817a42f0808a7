// Package api is the admin API in Go: the answers of usher under /api/v1, as plain structs that become JSON.
// The server, the terminal commands and the tests share it. openapi.json describes the same for programs in
// other languages; it is made from this package (make generate). cluster.go holds the API of kubectl usher
// dashboard, which queries usher on several nodes; cluster.json describes that.
//
// Conventions:
//
//   - The API is read-only. Methods other than GET and HEAD are answered by 405.
//   - Services are written "namespace/name", addresses "10.96.0.10:80" and
//     "[fd00::1]:80", Pods "namespace/name".
//   - Times are RFC 3339. Durations have their unit in the name: Ms is
//     milliseconds, with fractions, Seconds is seconds.
//   - Unknown and inapplicable values are left out. Lists are never null.
//   - Counts start with the process or, for a service port or an endpoint, when
//     it becomes known. [Status.Instance] identifies the process.
//   - Fields and values of enumerations are added over time and never renamed; a
//     reader skips those that it does not know.
//   - Errors have the body [Error].
package api
