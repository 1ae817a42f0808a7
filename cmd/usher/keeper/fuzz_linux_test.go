package keeper

import (
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"
)

// FuzzMessages: two usher processes, one of which takes over from the other, send any messages, each with a
// descriptor. The keeper counts the descriptors that it keeps, and closes all others.
func FuzzMessages(f *testing.F) {
	f.Add("FDSTORE=1\nFDNAME=a\x00FDSTORE=1\nFDNAME=a\x00FDSTOREREMOVE=1\nFDNAME=a\x00STOPPING=1")
	f.Add("FDSTORE=1\x00READY=1\x00FDSTORE=1\nFDSTOREREMOVE=1\nREADY=1\x00WATCHDOG=1\nFDSTORE=1\nFDNAME=b")
	f.Fuzz(func(t *testing.T, text string) {
		var logger *logrus.Logger
		logger, _ = test.NewNullLogger()
		// No processes have these IDs, so the keeper sends no signal to a real process.
		current, next := &child{pid: 1 << 30, since: time.Now()}, &child{pid: 1<<30 + 1, since: time.Now()}
		k := &keeper{Options: Options{Log: logger}, taken: make(chan struct{}, 1), kept: map[string][]int{}, current: current, next: next}
		var all []int
		for i, said := range strings.Split(text, "\x00") {
			c := k.current
			if i%2 > 0 && k.next != nil {
				c = k.next
			}
			fd, err := unix.MemfdCreate("kept", unix.MFD_CLOEXEC)
			if err == unix.EMFILE {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fd)
			k.hear(c, &message{text: said, fds: []int{fd}})
		}
		if k.next != nil {
			k.upgradeFailed("exit code 1")
		}
		count, length := 0, 0
		for name, fds := range k.kept {
			count, length = count+len(fds), length+len(fds)*(len(name)+1)
		}
		if count != k.count || length != k.length {
			t.Errorf("%d descriptors with names of %d bytes are said to be %d and %d", count, length, k.count, k.length)
		}
		k.drop()
		for _, fd := range all {
			if unix.Close(fd) == nil {
				t.Fatalf("%q: one stays open", text)
			}
		}
	})
}
