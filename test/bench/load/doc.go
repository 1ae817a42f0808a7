// Package load is what a proxy under measurement stands between: the clients
// and the endpoint.
//
// Both are made so that they cost little next to a proxy: one thread for each
// loop, one epoll for each thread, system calls that do not tell Go's scheduler
// (a loop never gives up its thread), nothing allocated while it measures. They
// share no code with what is measured.
//
// Clients count what was completed between two moments, begin and end, which
// they announce on standard output so that the one who measures the proxy can
// look at it at the same moments.
package load
