#!/bin/sh
# Fetches Debian's kernel for virtual machines into .cache/kernel, where the specs of
# test/vm find it, unless there is one there or in /boot. It is not installed: no machine
# shall boot another kernel for having run tests. Needs no root. Where it cannot be had,
# that is said, and those specs say so too.
set -eu
cd "$(dirname "$0")/.."
for kernel in /boot/vmlinuz-*-cloud-amd64 .cache/kernel/boot/vmlinuz-*-cloud-amd64; do
	if [ -r "$kernel" ]; then exit 0; fi
done
for program in apt-cache apt-get dpkg-deb depmod; do
	if ! PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null; then
		echo "note: no $program, so no kernel for the tests that boot one"
		exit 0
	fi
done
# The package whose dependency is the kernel of the day.
package() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1; }
name=$(package)
if [ -z "$name" ] && [ "$(id -u)" = 0 ]; then
	apt-get update -qq
	name=$(package)
fi
if [ -z "$name" ]; then
	echo "note: apt knows no linux-image-cloud-amd64, so no kernel for the tests that boot one"
	exit 0
fi
echo "Fetching from Debian, not installing: $name"
rm -rf .cache/kernel .cache/kernel.new
mkdir -p .cache/kernel.new
if (
	cd .cache/kernel.new &&
		apt-get download -qq "$name" &&
		dpkg-deb -x ./*.deb . &&
		rm ./*.deb &&
		PATH=$PATH:/usr/sbin:/sbin depmod -b . "${name#linux-image-}"
) >.cache/kernel.log 2>&1; then # as root, apt tells that it downloads unsandboxed
	mv .cache/kernel.new .cache/kernel
else
	cat .cache/kernel.log
	echo "note: $name could not be fetched, so no kernel for the tests that boot one"
fi
