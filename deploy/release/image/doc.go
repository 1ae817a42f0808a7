// Command image makes usher's image: an OCI archive for linux/amd64 and linux/arm64, without a
// daemon, without root, and without running anything of the other architecture.
//
// Each image has two layers. The lower one is iptables in both variants, and only what that needs,
// out of Debian's packages; it changes only when debian.lock does, which names each package by its
// SHA-256. The upper one is usher. Times are those of the lock and of the commit, so the same
// commit, built with the same Go, has the same digest.
//
// The packages are kept in a folder and fetched from deb.debian.org when they are not there, from
// snapshot.debian.org when Debian has newer ones. -lock writes the lock anew, with what Debian has
// now: that needs apt, which checks the signatures.
package main
