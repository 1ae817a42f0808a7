#!/bin/sh
# Runs after the package's files were installed. dpkg passes "configure" and the previous
# version, if there was one; rpm passes the number of installed versions.
set -e

# A chroot or a container may have no running systemd.
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# A new package starts nothing: see usher.service. A running usher is replaced by the new
# program without a gap. systemd does not reload one that still waits for its API server;
# that one is restarted.
case "$(systemctl is-active usher.service)" in
active | reloading) systemctl reload usher.service ;;
activating) systemctl --no-block restart usher.service ;;
esac
