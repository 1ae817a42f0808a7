package dns

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

func TestUnreadableFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver 192.0.2.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	log, logged := logtest.NewNullLogger()
	u := &upstreams{log: log, file: resolvConf{path: path}}
	now := time.Now()
	if !u.file.changed(now) {
		t.Fatal("a new file has not changed")
	}
	u.file.path = filepath.Join(t.TempDir(), "none") // as if it could not be opened
	u.read()
	u.read()
	if n := len(logged.AllEntries()); n != 1 || logged.LastEntry().Level != logrus.WarnLevel {
		t.Errorf("%d log entries", n)
	}
	u.file.path = path
	if !u.file.changed(now.Add(lookInterval)) {
		t.Error("the file is not read again")
	}
	if u.read(); len(u.servers) != 1 {
		t.Errorf("the servers are %v", u.servers)
	}
}
