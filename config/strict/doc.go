// Package strict reads YAML and JSON as strictly as a person who wrote a file would
// wish: every mistake is told, with the line or the field where it is, and nothing
// is passed over.
//
//	Split   a file's bytes  → documents, which know their line
//	ToJSON  a document      → JSON; mistakes in the syntax, fields that are there twice
//	Decode  JSON            → an object; unknown and duplicate fields, values of the wrong type
//
// The parsers are those of Kubernetes, sigs.k8s.io/yaml and sigs.k8s.io/json, so that
// a file means what it would mean to kubectl. What is added: a document with a mistake
// does not spoil the next one, lines count from the beginning of the file, a duplicate
// field has a path, and aliases have a bound.
package strict
