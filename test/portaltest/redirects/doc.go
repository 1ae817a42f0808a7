// Package redirects contains the specs for every portal mode that redirects. A mode provides
// a [Kind] for them, and adds its own specs.
package redirects
