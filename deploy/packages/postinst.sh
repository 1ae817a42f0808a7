#!/bin/sh
# After a package has put its files there. dpkg calls it with "configure" and, if there was
# one, the version before; rpm with how many versions there are now.
set -e

# In a chroot or a container there may be no systemd that could be told.
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# A new package does not start anything: see usher.service. An usher that runs is replaced by
# the new program, without a gap. One that does not serve yet, since it waits for its API
# server, is not reloaded by systemd, but may be started again at once.
case "$(systemctl is-active usher.service)" in
active | reloading) systemctl reload usher.service ;;
activating) systemctl --no-block restart usher.service ;;
esac
