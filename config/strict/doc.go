// Package strict reads YAML and JSON strictly: it reports every error, with its line or field, and ignores nothing.
//
//	Split   a file's bytes  → documents, which know their line
//	ToJSON  a document      → JSON; syntax errors, duplicate fields
//	Decode  JSON            → an object; unknown and duplicate fields, values of the wrong type
//
// The parsers are those of Kubernetes, sigs.k8s.io/yaml and sigs.k8s.io/json, so that a file means the same as to
// kubectl. In addition, a document with an error does not affect the next one, and lines count from the beginning of
// the file. The error for a duplicate field contains its path. The size of expanded aliases is limited.
package strict
