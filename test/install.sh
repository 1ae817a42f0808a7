#!/bin/sh
# Installs the Debian packages named, if they are missing and we are root. Says
# what it does, and removes nothing. Without root, without apt, or where a package cannot be
# had, it says what is missing and goes on: whatever needs the package says so itself.
set -eu

missing=
for package in "$@"; do
	# Its program may be of another package: containerd and runc of Docker's containerd.io,
	# which apt would remove, and Docker with it.
	command -v "$package" >/dev/null ||
		dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "note: not a Debian system; these packages may be missing:$missing"
elif [ "$(id -u)" != 0 ]; then
	echo "note: not root, so not installing:$missing"
else
	echo "Installing from Debian:$missing"
	# For tests programs are wanted, not services: none is started, now (see
	# invoke-rc.d(8)) or at the next boot.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		trap 'rm -f $policy' EXIT
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod +x $policy
	fi
	services() { ls /etc/systemd/system/multi-user.target.wants 2>/dev/null || true; }
	before=$(services)
	install() { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends --no-remove "$@" >/dev/null; }
	apt-get update -qq || true
	install $missing || for package in $missing; do
		install "$package" || echo "note: not installed: $package"
	done
	for service in $(services); do
		case " $(echo $before) " in
		*" $service "*) ;;
		*) systemctl disable --quiet "$service" || true ;;
		esac
	done
fi
