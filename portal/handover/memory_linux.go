package handover

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Memory returns an empty file that is in memory only, for as long as somebody has it
// open (memfd_create(2)). Who gets it in a handover shares the position: io.NewSectionReader
// reads without it.
func Memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("creating a memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
