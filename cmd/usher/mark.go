package main

import (
	"errors"
	"fmt"
	"strconv"
)

// markFlag is the value of --mark. It is shown as rules show marks, in hexadecimal,
// and may be given as a decimal number too.
type markFlag uint32

func (m *markFlag) String() string { return fmt.Sprintf("%#x", uint32(*m)) }

func (m *markFlag) Set(s string) error {
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		return errors.New("it must be a number of 32 bits, such as 0x2000 or 8192")
	}
	*m = markFlag(v)
	return nil
}

func (m *markFlag) Type() string { return "bits" }
