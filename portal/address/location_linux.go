package address

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// errNever is why there is no space if the options exclude it.
var errNever = errors.New("--address-namespace=never")

// errOnVIPLink is why there is no space if VIPs are on kernel.VIPLink: routes into a space may have no effect either.
var errOnVIPLink = errors.New("local routes have no effect in this kernel")

// withoutRoutes always makes VIPs addresses of an interface. Specs set it.
var withoutRoutes = false

// chooseNamespace makes a space, if the options allow one, and determines by a test the families whose VIPs can be in
// it. The test leaves nothing on the node. If another usher process has a link, that link works: chooseNamespace then
// tests nothing, and leaves the link in use.
func (p *addressPortal) chooseNamespace() error {
	how := p.opts.AddressNamespace
	auto := how == portal.AddressNamespaces[0]
	var before netlink.Link
	err := errNever
	switch {
	case auto && p.routes.OnVIPLink():
		err = errOnVIPLink
	case auto || how == portal.AddressNamespaces[1]:
		if before, err = p.makeSpace(); err != nil && !auto {
			return err
		}
	}
	for _, family := range portal.Families {
		p.onNode[family] = err
	}
	if err != nil {
		return nil
	}
	table, err := p.routes.Table()
	if err != nil {
		return err
	}
	p.others = table.Others
	for _, family := range portal.Families {
		p.onNode[family] = p.tryFamily(family, before, auto)
	}
	if before == nil {
		_, err = removeWay()
	}
	failed := p.onNode[portal.IPv4]
	if auto {
		failed = nil
	}
	if len(p.families()) == 0 || failed != nil {
		p.link.node.Close()
		p.link.space.close()
		p.link = nil
	}
	return errors.Join(failed, err)
}

// tryFamily returns why VIPs of a family cannot be in the space, or nil if they can.
func (p *addressPortal) tryFamily(family portal.Family, before netlink.Link, auto bool) error {
	switch {
	case before != nil && auto:
		leads, err := leads(p.link.node, before, family)
		if err == nil && !leads {
			err = fmt.Errorf("the previous usher process has %s without %s", linkName, family)
		}
		return err
	case before != nil:
		return nil
	case auto:
		if err := p.held(family); err != nil {
			return err
		}
		return p.link.try(family, p.routes)
	}
	_, err := p.link.connect([]portal.Family{family})
	return err
}

// makeSpace makes an unconnected space. It returns the node's end of another usher process's link, or nil if there is
// none.
func (p *addressPortal) makeSpace() (before netlink.Link, err error) {
	node, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	var s *space
	if before, err = findOurs(node); err == nil {
		s, err = makeSpace()
	}
	if err != nil {
		node.Close()
		return nil, err
	}
	p.link = &link{node: node, space: s}
	return before, nil
}

// held returns an error if another process serves VIPs that are addresses of the node, or still has connections there:
// moving these VIPs into the space would cut the connections.
func (p *addressPortal) held(family portal.Family) error {
	table, err := p.routes.Table()
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(table.Local, func(a netip.Addr) bool {
		return kernel.IsRedirectAddr(a) || portal.FamilyOf(a) != family || kernel.ContainsAddr(table.Others, a)
	})
	if len(ours) == 0 {
		return nil
	}
	listeners, err := kernel.Listeners()
	if err != nil {
		return err
	}
	busy, err := kernel.InUse(ours)
	if len(busy) > 0 || slices.ContainsFunc(listeners, func(l kernel.Listener) bool { return slices.Contains(ours, l.At.Addr()) }) {
		return errors.New("another usher process serves them there or has open connections; start this one after they have closed")
	}
	return err
}

// families returns the families whose VIPs are in the space.
func (p *addressPortal) families() []portal.Family {
	return slices.DeleteFunc(slices.Clone(portal.Families[:]), func(f portal.Family) bool { return p.onNode[f] != nil })
}

// traitsOf returns the traits of a portal or a VIP, by whether it is in the space.
func (p *addressPortal) traitsOf(inNamespace bool) portal.Traits {
	t := Mode.Traits
	switch {
	case inNamespace:
		t.InNamespace = true
		t.About = "a route for each cluster IP points into usher's\nnetwork namespace, where usher listens on it."
	case p.routes.OnVIPLink():
		t.About = "each cluster IP is an address of interface " + kernel.VIPLink + ",\nand usher listens on it."
	}
	return t
}

// inNamespaceNow reports whether a VIP has to be in the space. Excluded are node ports, addresses that the node has for
// other reasons, and addresses in a network of the node. Neighbors there resolve such an address by ARP, which the node
// answers only for its own addresses.
func (p *addressPortal) inNamespaceNow(vip netip.Addr) bool {
	return !vip.IsUnspecified() && p.onNode[portal.FamilyOf(vip)] == nil && !kernel.ContainsAddr(p.others, vip)
}

// vipLocation is inNamespaceNow for Listen: it records the result, and whether the VIP has moved.
func (p *addressPortal) vipLocation(vip netip.Addr) (inNamespace bool) {
	if vip.IsUnspecified() {
		return false
	}
	inNamespace = p.inNamespaceNow(vip)
	if was, asked := p.inNamespace[vip]; asked && was != inNamespace {
		p.moved[vip] = true
	}
	p.inNamespace[vip] = inNamespace
	return inNamespace
}

// route makes a VIP local, in the space or on the node.
func (p *addressPortal) route(vip netip.Addr, inNamespace bool) error {
	if inNamespace && p.link.index == 0 {
		return fmt.Errorf("no interface %s leads to the namespace", linkName)
	}
	if inNamespace {
		return p.routes.AddVia(vip, p.link.index, spaceEnd.gateway(portal.FamilyOf(vip)))
	}
	return p.routes.Add(vip)
}

// unroute reverts route.
func (p *addressPortal) unroute(vip netip.Addr) (err error) {
	if p.routed[vip] {
		err = p.routes.RemoveVia(vip)
	} else {
		err = p.routes.Delete(vip)
	}
	if err == nil {
		delete(p.routed, vip)
	}
	return err
}

// inUse returns those of vips that open connections use, on the node or in the space.
func (p *addressPortal) inUse(vips []netip.Addr) (needed map[netip.Addr]bool, err error) {
	needed, err = kernel.InUse(vips)
	if p.link != nil {
		p.link.space.do(func() {
			inside, err2 := kernel.InUse(vips)
			maps.Copy(needed, inside)
			err = errors.Join(err, err2)
		})
	}
	return needed, err
}

// keepWay ensures that the link into the space and the exemptions exist, and returns the parts that were missing.
// Without a space, it removes another usher process's link and exemptions, until the first Apply has succeeded.
func (p *addressPortal) keepWay() (changed []string, err error) {
	families := p.families()
	if len(families) == 0 {
		if !p.applied {
			_, err = removeWay()
		}
		return nil, err
	}
	made, err := p.link.connect(families)
	if made {
		changed = append(changed, "the link "+linkName)
	}
	for _, family := range families {
		made, err2 := exempt(family)
		if made {
			changed = append(changed, fmt.Sprintf("the nftables table %s for %s", exemptTable, family))
		}
		err = errors.Join(err, err2)
		if p.opts.AddressNamespace == portal.AddressNamespaces[0] {
			err = errors.Join(err, forwards(family))
		}
	}
	return changed, err
}

// removeWay removes the link into a space, and the exemptions.
func removeWay() (removed []string, err error) {
	node, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer node.Close()
	was, err := removeLink(node)
	if errors.Is(err, errNotOurs) {
		err = nil
	}
	if was {
		removed = append(removed, fmt.Sprintf("link: %s, with the routes over it", linkName))
	}
	tables, err2 := removeExemptions()
	return append(removed, tables...), errors.Join(err, err2)
}

func (p *addressPortal) Namespace() *os.File {
	if p.link == nil {
		return nil
	}
	fd, err := unix.FcntlInt(p.link.space.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "network namespace")
}

func (p *addressPortal) UseNamespace(file *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.families()) == 0 {
		file.Close()
		return
	}
	s, err := openSpace(file)
	if err != nil {
		p.log.WithError(err).Warn("Connections of another usher process will be cut")
		return
	}
	p.link.space.close()
	p.link.space = s
}

// logLocation logs where VIPs are. If they are on the node although a namespace was wanted, it logs the consequences.
func (p *addressPortal) logLocation() {
	vips := map[portal.Family]bool{}
	for vip := range p.users {
		vips[portal.FamilyOf(vip)] = true
	}
	if families := p.families(); len(families) > 0 {
		p.log.WithFields(logrus.Fields{"families": fmt.Sprint(families), "look": fmt.Sprintf("nsenter --net=/proc/%d/fd/%d ss -tuln", os.Getpid(), p.link.space.file.Fd())}).
			Info("VIPs are in usher's network namespace")
	}
	if p.routes.OnVIPLink() {
		p.log.WithField("interface", kernel.VIPLink).WithField("reason", errOnVIPLink.Error()).Info("VIPs are addresses of an interface")
		for _, family := range portal.Families {
			if clashes := p.clashes(family); len(clashes) > 0 {
				p.log.WithField("clashes", portal.Shorten(clashes)).Warn("Processes that listen on all addresses take ports of VIPs; make them listen on single addresses")
			}
		}
		return
	}
	for _, family := range portal.Families {
		if err := p.onNode[family]; err != nil && !errors.Is(err, errNever) && vips[family] {
			p.log.WithError(err).WithFields(logrus.Fields{"family": family.String(), "clashes": portal.Shorten(p.clashes(family))}).
				Warn("VIPs are addresses of this node, not of a dedicated network namespace; processes that listen on all addresses conflict with Services for ports")
		}
	}
}

// clashes describes the VIPs and ports of a family that another process on the node uses.
func (p *addressPortal) clashes(family portal.Family) (list []string) {
	listeners, err := kernel.Listeners()
	if err != nil {
		return []string{err.Error()}
	}
	for _, t := range portal.SortedTargets(p.rules) {
		if portal.FamilyOf(t.Addr) != family || t.Addr.IsUnspecified() {
			continue
		}
		for _, l := range listeners {
			if !l.Mine && l.Takes(t) {
				list = append(list, fmt.Sprintf("%s with %s on %s", t, l.Process, l.At))
				break
			}
		}
	}
	return list
}
