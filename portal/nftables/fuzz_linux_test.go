package nftables

import (
	"bytes"
	"testing"

	"github.com/usherproxy/usher/portal"
)

// FuzzElement: usher parses an element of its maps only if writing the result gives the same element.
func FuzzElement(f *testing.F) {
	f.Add([]byte{10, 96, 0, 10, 6, 0, 0, 0, 0, 80, 0, 0}, []byte{0, 8, 0, 1, 0, 0, 0, 0}, false)
	f.Add([]byte{17, 0, 0, 0, 0, 53, 0, 0}, []byte{0, 8, 0, 1, 0xff, 0xff, 0xff, 0xfd, 0, 9, 0, 2, 'x', 0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, key, data []byte, node bool) {
		for _, family := range portal.Families {
			k, ok := parseKey(family, node, false, false, key)
			if ok && k.target.Addr.Is4() != (family == portal.IPv4) {
				t.Errorf("%x is read as %v of %s", key, k, family)
			}
			if again, ok2 := parseKey(family, node, false, false, k.bytes()); ok && !k.target.Addr.IsUnspecified() && (!ok2 || again != k) {
				t.Errorf("%x is read as %v, and that written and read as %v", key, k, again)
			}
		}
		if v, ok := parseVerdict(data); ok && v != verdictDrop && !bytes.Contains(data, []byte(v.chain())) {
			t.Errorf("%x is read as %q", data, v)
		}
	})
}
