// Package krew fills the manifest by which krew, the package manager of kubectl's plugins, installs usher:
// deploy/krew/usher.yaml, with the version and the checksums of a release's archives.
package krew
