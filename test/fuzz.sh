#!/bin/sh
# Runs each fuzz target of the module for the time given.
set -eu
for dir in $(git ls-files '*_test.go' | xargs grep -l '^func Fuzz' | xargs -n1 dirname | sort -u); do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | sed 's/^func //'); do
		echo "$dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "./$dir"
	done
done
