#!/bin/sh
# fuzz.sh TIME [FLAG…]: runs each fuzz target of the module for so long. Inputs that go new ways
# are kept for the next time ($(go env GOCACHE)/fuzz). One that fails is written to
# testdata/fuzz of its package, where 'go test' runs it from then on: commit it with the repair.
set -eu
cd "$(dirname "$0")/.."
time=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# fuzz is 'go test', but for what Go 1.26 and older call a failure now and then: that the time
# is over (https://go.dev/issue/75804).
fuzz() {
	rm -f "$dir/failed"
	{ go test -vet=off "$@" 2>&1 || echo yes >"$dir/failed"; } | tee "$dir/log"
	[ ! -e "$dir/failed" ] || { grep -q '^ *context deadline exceeded$' "$dir/log" &&
		! grep -q 'Failing input written\|panic:\|terminated unexpectedly\|build failed' "$dir/log"; }
}

for package in $(git ls-files '*_test.go' | xargs grep -l '^func Fuzz' | xargs -n1 dirname | sort -u); do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$package"/*_test.go | sed 's/^func //'); do
		echo "$package $target"
		fuzz -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$@" "./$package"
	done
done
