package iptables

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// The kernel sends no events for tables of the legacy variant. Listing them by iptables-save at each Check would be
// most of the work of an idle usher. But getsockopt returns a table as the kernel stores it: while its bytes are
// unchanged, so are its rules.

// Definitions of linux/netfilter_ipv4/ip_tables.h and ip6_tables.h, the same for both families.
const (
	soGetInfo, soGetEntries    = 64, 65
	tableNameSize              = 32
	infoSize, sizeAt           = 84, 80 // struct ipt_getinfo, and its offset for the size of all rules
	getEntriesSize, getSizeAt  = 40, 32 // struct ipt_get_entries, followed by the rules
	entryNext, entryCounters   = 90, 96 // of struct ipt_entry: next_offset and counters
	entryNext6, entryCounters6 = 142, 152
	countersSize               = 16
)

// tableSeed is the same for all fingerprints of this process.
var tableSeed = maphash.MakeSeed()

// fingerprint returns a hash of a table of the legacy variant. Counters are excluded. The kernel sets up a missing
// table when it is read.
func fingerprint(family portal.Family, table string) (uint64, error) {
	domain, level, next, counters := unix.AF_INET, unix.SOL_IP, entryNext, entryCounters
	if family.Is6() {
		domain, level, next, counters = unix.AF_INET6, unix.SOL_IPV6, entryNext6, entryCounters6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("reading table %s: %w", table, err)
	}
	defer unix.Close(fd)
	info := make([]byte, infoSize)
	copy(info[:tableNameSize], table)
	if err := getsockopt(fd, level, soGetInfo, info); err != nil {
		return 0, fmt.Errorf("reading table %s: %w", table, err)
	}
	size := binary.NativeEndian.Uint32(info[sizeAt:])
	all := make([]byte, getEntriesSize+int(size))
	copy(all[:tableNameSize], table)
	binary.NativeEndian.PutUint32(all[getSizeAt:], size)
	if err := getsockopt(fd, level, soGetEntries, all); err != nil {
		return 0, fmt.Errorf("reading rules of table %s: %w", table, err)
	}
	for rule := all[getEntriesSize:]; len(rule) >= counters+countersSize; {
		clear(rule[counters : counters+countersSize])
		length := int(binary.NativeEndian.Uint16(rule[next:]))
		if length == 0 || length > len(rule) {
			break
		}
		rule = rule[length:]
	}
	return maphash.Bytes(tableSeed, all), nil
}

// getsockopt fills value, which contains the request.
func getsockopt(fd, level, option int, value []byte) error {
	length := uint32(len(value))
	_, _, err := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if err != 0 {
		return err
	}
	return nil
}
