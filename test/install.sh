#!/bin/sh
# Installs the Debian packages named, if they are missing and we are root. Says
# what it does. Without root, or without apt, it says what is missing and goes
# on: whatever needs the package says so itself.
set -eu

missing=
for package in "$@"; do
	dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "note: not a Debian system; these packages may be missing:$missing"
elif [ "$(id -u)" != 0 ]; then
	echo "note: not root, so not installing:$missing"
else
	echo "Installing from Debian:$missing"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
