#!/bin/sh
# Fetches Debian's kernels for virtual machines into .cache, where the specs of test/vm find
# them: the one for this Debian, unless it is there or in /boot; User Mode Linux; Linux 5.10; and
# one for arm64 with the programs that a machine needs. Nothing is installed: no machine shall boot another
# kernel for having run tests. Needs no root. What cannot be had is said, and those specs say
# so too.
set -eu
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
for program in apt-cache apt-get dpkg-deb depmod flock; do
	if ! command -v "$program" >/dev/null; then
		echo "note: no $program, so no kernels for the tests that boot one"
		exit 0
	fi
done
exec 9<test/kernel.sh
flock 9 # only one process fetches

# present reports whether one of the files is there.
present() {
	for file; do
		if [ -r "$file" ]; then return 0; fi
	done
	return 1
}

# use makes apt work for the release $1 of Debian and the processor $2, apart from this
# machine's apt, in $3.
use() {
	mkdir -p "$3/lists/partial" "$3/archives/partial"
	: >"$3/status" # so nothing is installed, and all that a package depends on is fetched
	# From the mirror that this machine has.
	mirror=$(apt-cache policy 2>/dev/null | sed -n 's|.* \(https\{0,1\}://[^ ]*/debian\)/* .*|\1|p' | head -n 1)
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} $1 main" >"$3/sources.list"
	cat >"$3/apt.conf" <<-END
		Dir::Etc::sourcelist "$3/sources.list";
		Dir::Etc::sourceparts "-";
		Dir::State "$3";
		Dir::State::status "$3/status";
		Dir::Cache "$3";
		APT::Architecture "$2";
		APT::Architectures "$2";
		Acquire::Languages "none";
		APT::Sandbox::User "$(id -un)";
	END
	export APT_CONFIG="$3/apt.conf"
	apt-get update -qq
}

# package prints the name of the kernel of the day for the processor $1.
package() { apt-cache depends "linux-image-cloud-$1" 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1; }

# unpack downloads a package of the processor $1, and what else is named with all that it
# depends on, into this folder.
unpack() {
	name=$(package "$1")
	[ -n "$name" ] || { echo "apt knows no linux-image-cloud-$1"; return 1; }
	shift
	apt-get download -qq "$name"
	if [ $# != 0 ]; then
		apt-get install -qq -y --download-only --no-install-recommends "$@"
		mv apt/archives/*.deb .
	fi
	open
	depmod -b . "${name#linux-image-}"
}

# open unpacks the packages in this folder.
open() {
	for deb in ./*.deb; do
		dpkg-deb -x "$deb" .
	done
	rm -rf ./*.deb apt
}

# processor gets a kernel for the processor $2, and further packages, into .cache/$1. $3 is the
# release of Debian, or "" for what this machine's apt knows.
processor() {
	if present ".cache/$1"/boot/vmlinuz-*-cloud-"$2"; then return; fi
	folder=$1 arch=$2 release=$3
	shift 3
	fetch "$folder" "a kernel for $arch${release:+, of $release}" emulated "$@"
}

emulated() {
	if [ -n "$release" ]; then
		use "$release" "$arch" "$PWD/apt"
	elif [ -z "$(package "$arch")" ]; then
		update
	fi
	unpack "$arch" "$@"
	if [ $# != 0 ]; then
		# What the package does when it is installed (update-alternatives(1)).
		for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
			ln -sf xtables-nft-multi "usr/sbin/$name"
		done
	fi
}

# process gets the kernel that is a process of this machine into .cache/$1: User Mode Linux.
process() {
	if ! present ".cache/$1/usr/bin/linux.uml"; then fetch "$1" "User Mode Linux" user_mode; fi
}

user_mode() {
	[ -n "$(apt-cache show user-mode-linux 2>/dev/null)" ] || update
	apt-get download -qq user-mode-linux
	open
}

# update gets the lists of packages of this machine's apt, if the user may.
update() { if [ "$(id -u)" = 0 ]; then apt-get update -qq; fi; }

# fetch calls the function $3 with further arguments in a folder that becomes .cache/$1. $2 says what
# it gets.
fetch() {
	folder=$1
	echo "Fetching from Debian, not installing: $2"
	rm -rf ".cache/$folder" ".cache/$folder.new"
	mkdir -p ".cache/$folder.new"
	shift 2
	( # by itself, since in a condition set -e means nothing
		cd ".cache/$folder.new"
		"$@"
	) >".cache/$folder.log" 2>&1 & # as root, apt warns that it downloads unsandboxed
	if wait $!; then
		mv ".cache/$folder.new" ".cache/$folder"
	else
		cat ".cache/$folder.log"
		echo "note: this kernel could not be fetched, so the tests that boot it are skipped"
	fi
}

present /boot/vmlinuz-*-cloud-amd64 || processor kernel amd64 ""
[ "$(uname -m)" != x86_64 ] || process kernel-uml
library=.cache/kernel-uml/ptrace.so
if [ -d .cache/kernel-uml ] && [ ! $library -nt test/vm/uml/ptrace.c ] && ! cc -O2 -Wall -shared -fPIC -o $library test/vm/uml/ptrace.c -ldl; then
	echo "note: without ptrace.so, User Mode Linux does not run on CPUs with AMX, and tests emulate a PC there"
fi
processor kernel-5.10 amd64 bullseye
processor kernel-arm64 arm64 bookworm iptables iproute2 kmod
