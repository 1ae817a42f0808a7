#!/bin/sh
# Says which tests this user cannot run, and why.
if [ "$(id -u)" != 0 ]; then
	echo "note: not root. Tests that make network namespaces, install rules or routes, or"
	echo "note: start usher on cluster IPs are skipped; all others run. As root all run."
fi
