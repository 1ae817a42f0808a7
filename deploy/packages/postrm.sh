#!/bin/sh
# After a package has taken its files away.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
