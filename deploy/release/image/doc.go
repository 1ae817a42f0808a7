// Command image builds usher's image: an OCI archive for linux/amd64 and linux/arm64. It needs no
// daemon and no root, and runs no program of the other architecture.
//
// Each image has two layers. The lower one is iptables in both variants with its dependencies,
// from Debian's packages. It changes only with debian.lock, which names each package by its
// SHA-256. The upper one is usher. Times are those of the lock and of the commit, so the same
// commit, built with the same Go, has the same digest.
//
// The packages are cached in a folder. Missing ones are fetched from deb.debian.org, or from
// snapshot.debian.org if Debian has newer ones. -lock rewrites the lock with Debian's current
// packages: this needs apt, which verifies the signatures.
package main
