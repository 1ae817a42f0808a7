#!/bin/sh
# Runs after the package's files were removed.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
