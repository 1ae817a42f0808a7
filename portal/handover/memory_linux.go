package handover

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Memory returns an empty in-memory file, which exists as long as a process has it open (memfd_create(2)). A process
// that receives it in a handover shares the file position; io.NewSectionReader does not use it.
func Memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("creating a memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
