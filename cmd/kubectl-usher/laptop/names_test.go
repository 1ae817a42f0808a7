package laptop

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

func TestRetryListenLogsOnceThatItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		log, logged := logtest.NewNullLogger()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		g.Expect(retryListen(ctx, syscall.EADDRINUSE, func() error { return syscall.EADDRINUSE }, log)).To(BeFalse())
		g.Expect(logged.AllEntries()).To(ConsistOf(HaveField("Data", HaveKeyWithValue(logrus.ErrorKey, error(syscall.EADDRINUSE)))))
		tries := 0
		g.Expect(retryListen(t.Context(), syscall.EADDRINUSE, func() error {
			if tries++; tries < 50 {
				return errors.New("still in use")
			}
			return nil
		}, log)).To(BeTrue())
		g.Expect(logged.AllEntries()).To(HaveLen(1), "a predecessor closes its listeners sooner")
	})
}
