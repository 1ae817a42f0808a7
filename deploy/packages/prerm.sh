#!/bin/sh
# Runs before the package's files are removed. dpkg passes "remove", or "upgrade" and the
# like; rpm passes the number of versions that will remain.
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
# A stopped unit leaves its rules for a successor, and there will be none. If usher cannot
# remove them (another instance is running, a permission is missing), it prints the reason.
usher cleanup --log-level=error >/dev/null || echo "usher: see 'usher cleanup' about rules that are left" >&2
