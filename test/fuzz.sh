#!/bin/sh
# fuzz.sh TIME [FLAG…]: runs each fuzz target of the module for so long. Inputs that go new ways
# are kept for the next time ($(go env GOCACHE)/fuzz). One that fails is written to
# testdata/fuzz of its package, where 'go test' runs it from then on: commit it with the mend.
set -eu
cd "$(dirname "$0")/.."
time=$1
shift
for dir in $(git ls-files '*_test.go' | xargs grep -l '^func Fuzz' | xargs -n1 dirname | sort -u); do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | sed 's/^func //'); do
		echo "$dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$@" "./$dir"
	done
done
