package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/nftables"
	netlinksocket "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

const (
	// nftBuffer is enough for a transaction over some 100,000 elements: the kernel accepts no message larger than the
	// socket's send buffer. Where only the limits for unprivileged processes are available, as in a user namespace, the
	// transaction is split.
	nftBuffer = 32 << 20
	// nftAnswerTime is how long the kernel may take for a transaction. The first one makes it run modprobe for about ten
	// modules, one after the other, which on a slow machine takes more than half a minute. Without a limit, a batch that
	// the kernel answers with one error instead of one per message would never end.
	nftAnswerTime = 2 * time.Minute
)

// OwnSockets holds the netlink port IDs from which this process makes changes. For a command that it runs, that is the
// process ID, which is the port ID of the command's first socket. NFTEvents ignores change events with these port IDs.
var OwnSockets = recent{added: map[uint32]time.Time{}}

// recent remembers numbers for ownFor.
type recent struct {
	mu    sync.Mutex
	added map[uint32]time.Time
}

// ownFor is how long a number counts as this process's. Later, another program may get the number; in another PID
// namespace, even soon. A change that takes longer counts as another program's, which costs only a check.
const ownFor = 20 * time.Second

// AddOf adds the number that make returns. Meanwhile, has waits: the socket or process with that number may act before
// make returns.
func (r *recent) AddOf(make func() (uint32, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := make()
	if err == nil {
		maps.DeleteFunc(r.added, func(_ uint32, at time.Time) bool { return time.Since(at) >= ownFor })
		r.added[n] = time.Now()
	}
	return err
}

func (r *recent) has(n uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return n != 0 && time.Since(r.added[n]) < ownFor // 0 is the kernel itself
}

// NFTFamily returns the library's constant for a family.
func NFTFamily(family portal.Family) nftables.TableFamily {
	if family == portal.IPv4 {
		return nftables.TableFamilyIPv4
	}
	return nftables.TableFamilyIPv6
}

// LegacyNAT reports whether legacy iptables has a nat table in this network namespace. A kernel without legacy iptables
// is no error.
func LegacyNAT(family portal.Family) (bool, error) { return legacyTable(family, "nat") }

func legacyTable(family portal.Family, table string) (bool, error) {
	name := "ip_tables_names"
	if family.Is6() {
		name = "ip6_tables_names"
	}
	names, err := os.ReadFile("/proc/thread-self/net/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return slices.Contains(strings.Fields(string(names)), table), err
}

// OpenNFT returns a connection for one transaction, or for reading.
func OpenNFT() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlinksocket.Conn) error {
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var local unix.Sockaddr
		if e := raw.Control(func(fd uintptr) { local, err = unix.Getsockname(int(fd)) }); e != nil {
			err = e
		}
		if nl, ok := local.(*unix.SockaddrNetlink); ok {
			_ = OwnSockets.AddOf(func() (uint32, error) { return nl.Pid, nil })
		}
		return errors.Join(err,
			c.SetReadBuffer(nftBuffer), c.SetWriteBuffer(nftBuffer),
			// Errors need not repeat the message that caused them.
			c.SetOption(netlinksocket.CapAcknowledge, true),
			c.SetReadDeadline(time.Now().Add(nftAnswerTime)))
	}))
	if err != nil {
		return nil, fmt.Errorf("querying nf_tables: %w", err)
	}
	return conn, nil
}

// NFTGeneration returns the generation of nf_tables in this network namespace, which each transaction increments by
// one; 0 if unavailable.
func NFTGeneration() uint32 {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{Version: unix.NFNETLINK_V0})
	answers, err := request.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
	if err != nil || len(answers) == 0 {
		return 0
	}
	id := find(answers[0][min(nfgenmsgSize, len(answers[0])):], unix.NFTA_GEN_ID)
	if len(id) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(id)
}

// NFTEvents reports changes by other processes for which matters returns true. matters gets the table and, for a chain
// or a rule, the chain.
func NFTEvents(matters func(table, chain string) bool) (Subscription, error) {
	return subscribe(unix.NETLINK_NETFILTER, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || OwnSockets.has(m.Header.Pid) {
			return false
		}
		switch m.Header.Type & 0xff {
		case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE,
			unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
			return matters(nftString(m.Data, unix.NFTA_TABLE_NAME), "")
		case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
			return matters(nftString(m.Data, unix.NFTA_CHAIN_TABLE), nftString(m.Data, unix.NFTA_CHAIN_NAME))
		case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
			return matters(nftString(m.Data, unix.NFTA_RULE_TABLE), nftString(m.Data, unix.NFTA_RULE_CHAIN))
		}
		return false
	}, unix.NFNLGRP_NFTABLES)
}

// nftString returns a string from the attributes of a message.
func nftString(data []byte, attribute uint16) string {
	text, _, _ := bytes.Cut(find(data[min(nfgenmsgSize, len(data)):], attribute), []byte{0})
	return string(text)
}
