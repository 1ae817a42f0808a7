package config

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	. "github.com/onsi/gomega"
)

func TestCutShortensLongText(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Cut("short", 5)).To(Equal("short"))
	g.Expect(Cut("longer", 5)).To(Equal("longe… (1 bytes more)"))
	for n := 1; n < 12; n++ {
		cut := Cut(strings.Repeat("é€𝄞", 3), n)
		g.Expect(utf8.ValidString(cut)).To(BeTrue(), "%d: %q", n, cut)
	}
	g.Expect(Cut(strings.Repeat("\x80", 300), 200)).To(HavePrefix(strings.Repeat("\x80", 200)+"…"), "not UTF-8")
}

func TestMessagesAreLimitedPerNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var mu sync.Mutex // each call comes from another goroutine
		leftOut := map[string]int{}
		w := &Words{LeftOut: func(namespace string, n int) {
			mu.Lock()
			leftOut[namespace] += n
			mu.Unlock()
		}}
		said := map[string]int{}
		for range 3600 * 20 { // an hour
			if w.Allow("loud", time.Now()) {
				said["loud"]++
			}
			time.Sleep(50 * time.Millisecond)
		}
		if w.Allow("quiet", time.Now()) {
			said["quiet"]++
		}
		g.Expect(said["quiet"]).To(Equal(1))
		g.Expect(said["loud"]).To(BeNumerically("~", wordsAtOnce+360, 2))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		g.Expect(leftOut).To(Equal(map[string]int{"loud": 3600*20 - said["loud"]}))

		for i := range 10 * maxSpeakers {
			w.Allow(fmt.Sprint(i), time.Now())
		}
		g.Expect(len(w.of)).To(BeNumerically("<=", maxSpeakers+1))
		time.Sleep(time.Hour)
		g.Expect(w.Allow("another", time.Now())).To(BeTrue(), "capacity is free again")
		synctest.Wait()
	})
}
