#!/bin/sh
# Runs tests of packages whose code depends on the CPU, and the demo, for arm64, in an emulator for single programs
# (qemu-user). What that lacks is in docs/requirements.md; test/vm boots an arm64 kernel besides.
set -eu
cd "$(dirname "$0")/.."
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || {
	echo "note: no qemu-aarch64-static, so nothing is run for arm64"
	exit 0
}
[ "$(go env GOARCH)" != arm64 ] || exit 0 # the other suites do it
export CGO_ENABLED=0 GOARCH=arm64
# This emulator is known to crash Go programs by the signals that preempt them:
# https://github.com/golang/go/issues/36981.
export GODEBUG=asyncpreemptoff=1
export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=60s # emulated, and beside others
go test -count=1 -vet=off -timeout=40m -exec "$emulator" ./portal/nftables ./proxy ./proxy/balance ./proxy/forward
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
go build -ldflags '-s -w' -o "$dir/usher" ./cmd/usher
"$emulator" "$dir/usher" demo --once --portal=none
