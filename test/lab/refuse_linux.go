package lab

import (
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A Refusal is a system call that fails, as on a kernel without it, or behind the
// filter of a container.
type Refusal struct {
	Call  uint32 // its number, unix.SYS_SPLICE for instance
	Level uint32 // of setsockopt(2): only for this level and option
	Name  uint32
	Errno unix.Errno
}

// Refuse makes system calls fail in the calling thread, and in processes that it starts, from now on
// (seccomp(2)). The thread must end with its goroutine, as that of [Namespace.Do].
func Refuse(refusals ...Refusal) error {
	var program []bpf.Instruction
	for _, r := range refusals {
		// Offsets are those of struct seccomp_data on a little-endian machine: the number of the
		// call, and the lower half of its second and third argument.
		then := []bpf.Instruction{bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(r.Errno)}}
		match := func(offset, value uint32) {
			then = append([]bpf.Instruction{bpf.LoadAbsolute{Off: offset, Size: 4}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: value, SkipTrue: uint8(len(then))}}, then...)
		}
		if r.Call == unix.SYS_SETSOCKOPT {
			match(32, r.Name)
			match(24, r.Level)
		}
		match(0, r.Call)
		program = append(program, then...)
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}))
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})), 0, 0)
}
