package daemon

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/proxy"
)

var _ = Describe("saved session affinity", func() {
	It("is stored once with the service manager, even if a process died between updates", func() {
		at := &net.UnixAddr{Name: filepath.Join(GinkgoT().TempDir(), "notify"), Net: "unixgram"}
		socket, err := net.ListenUnixgram("unixgram", at)
		Expect(err).NotTo(HaveOccurred())
		defer socket.Close()
		GinkgoT().Setenv("NOTIFY_SOCKET", at.Name)
		m, err := fdstore.FromEnvironment(logrus.New())
		Expect(err).NotTo(HaveOccurred())

		kept := map[string]int{proxy.KeptAffinities[0]: 1, proxy.KeptAffinities[1]: 1}
		for n := range 2 {
			file, err := os.Open(os.DevNull)
			Expect(err).NotTo(HaveOccurred())
			keepUnder(m, n, file)
			for range 3 {
				Expect(socket.SetReadDeadline(time.Now().Add(patience))).To(Succeed())
				text := make([]byte, 100)
				size, fds, err := fdpass.Receive(socket, text, 1)
				Expect(err).NotTo(HaveOccurred())
				what, rest, _ := strings.Cut(string(text[:size]), "\nFDNAME=")
				name, _, _ := strings.Cut(rest, "\n")
				switch what {
				case "FDSTORE=1":
					kept[name]++
					Expect(fds).To(HaveLen(1))
					Expect(unix.Close(fds[0])).To(Succeed())
				case "FDSTOREREMOVE=1":
					delete(kept, name)
				}
				Expect(kept).NotTo(BeEmpty())
			}
			Expect(kept).To(Equal(map[string]int{proxy.KeptAffinities[n]: 1}))
		}
	})

	It("is closed if there is no manager to store it", func() {
		file, err := os.Open(os.DevNull)
		Expect(err).NotTo(HaveOccurred())
		keepUnder(nil, 0, file)
		Expect(file.Close()).To(MatchError(os.ErrClosed))
	})
})
