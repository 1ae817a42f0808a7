#!/bin/sh
# rootfs.sh DIR: copies iptables, in both variants, and only what it needs into
# DIR, which becomes the root of the image. Runs where Debian's iptables is
# installed.
set -eu
root=$1

# copy copies files to where they are here; a link becomes the file it leads to.
copy() {
	for file; do
		mkdir -p "$root$(dirname "$file")"
		cp -L "$file" "$root$file"
	done
}

# libraries prints the libraries that programs load, and the loader.
libraries() {
	ldd "$@" 2>/dev/null | grep -o '/[^ ]*\.so[^ ]*' | sort -u
}

mkdir -p "$root/etc" "$root/run" "$root/tmp" "$root/usr/sbin"
# As in Debian, /lib is in /usr.
for folder in lib lib64; do
	mkdir -p "$root/usr/$folder"
	ln -s "usr/$folder" "$root/$folder"
done

# One program is all commands of a variant: it looks at the name it is called by.
for variant in nft legacy; do
	program=/usr/sbin/xtables-$variant-multi
	copy "$program" $(libraries "$program")
	for command in iptables ip6tables; do
		for what in "" -save -restore; do
			ln -s "xtables-$variant-multi" "$root/usr/sbin/$command-$variant$what"
		done
	done
done
for command in iptables ip6tables; do
	for what in "" -save -restore; do
		ln -s xtables-nft-multi "$root/usr/sbin/$command$what"
	done
done

# Matches and targets. All of them: to list a table, iptables must understand the
# rules of others, too.
for module in $(dirname "$(ldd /usr/sbin/xtables-nft-multi | grep -o '/[^ ]*libxtables[^ ]*')")/xtables/*.so; do
	copy "$module" $(libraries "$module")
done

# The numbers of protocols: iptables looks up sctp.
copy /etc/protocols

# For a kubeconfig whose server has a public certificate.
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
	copy /etc/ssl/certs/ca-certificates.crt
fi
