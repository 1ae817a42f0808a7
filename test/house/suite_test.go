package house

import (
	"io/fs"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestHouse(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "house")
}

// repository is the root of the working tree.
var repository = os.DirFS("../..")

// filesNamed returns the paths of the repository's files that end with suffix. Like the go command, it skips build
// output: folders whose names begin with a dot (except GitHub's), bin, and testdata.
func filesNamed(suffix string) (paths []string) {
	GinkgoHelper()
	Expect(fs.WalkDir(repository, ".", func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case !entry.IsDir():
			if strings.HasSuffix(name, suffix) {
				paths = append(paths, path)
			}
		case path == "bin", name == "testdata", name != "." && name != ".github" && strings.HasPrefix(name, "."):
			return fs.SkipDir
		}
		return nil
	})).To(Succeed())
	return paths
}
