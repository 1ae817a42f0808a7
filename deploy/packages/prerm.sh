#!/bin/sh
# Before a package takes its files away. dpkg calls it with "remove", or "upgrade" and the
# like; rpm with how many versions there will be.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
if command -v systemctl >/dev/null; then
	if [ -d /run/systemd/system ]; then
		systemctl stop usher.service
	fi
	systemctl --no-reload --quiet disable usher.service || true
fi
# A unit that was stopped leaves its rules for a successor, and there will be none. What
# keeps usher from removing them (another usher that runs here, a right) it says.
usher cleanup --log-level=error >/dev/null || echo "usher: see 'usher cleanup' about rules that are left" >&2
