// Package redirects has the specs that every mode of portal meets that redirects. A mode says
// with a [Kind] how it is looked at, and adds specs of its own.
package redirects
