// Package krew completes the manifest from which krew, kubectl's plugin manager, installs usher:
// deploy/krew/usher.yaml, with the version and the checksums of a release's archives.
package krew
