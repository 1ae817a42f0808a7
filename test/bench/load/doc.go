// Package load contains the clients and the endpoint, between which a proxy is measured.
//
// Both cost little compared with a proxy: one thread for each loop, one epoll for each thread, system calls that bypass
// Go's scheduler (a loop never gives up its thread), and no allocations while measuring. They share no code with the
// measured programs.
//
// Clients count the exchanges completed between two moments, begin and end. They announce both on standard output, so
// that the process that measures the proxy can read its usage at the same moments.
package load
