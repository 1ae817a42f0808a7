package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"slices"
	"strings"
	"syscall"
)

// The congestion control of namespaces unless -congestion is set: Linux's default, or, where that cannot be set, the
// one that every kernel has and allows.
const (
	usual    = "cubic"
	fallback = "reno"
)

// allowed lists the values that may be set in a network namespace other than the machine's first. It can be written
// only in the first one.
const allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"

// settleCongestion returns the TCP congestion control for namespaces: wanted, or, if that is "", the usual one or its
// fallback. note is the reason for the fallback. end reverts the change that allowed it.
func settleCongestion(wanted string) (name, note string, end func(), err error) {
	name = wanted
	if name == "" {
		name = usual
	}
	end, err = enable(name)
	if err == nil {
		return name, "", end, nil
	}
	if errors.Is(err, syscall.EROFS) {
		return "", "", nil, fmt.Errorf("%w; type, as root: mount -o remount,rw /proc/sys (in a container: start it privileged)", err)
	}
	why := fmt.Sprintf("%s cannot be set in a network namespace here: %v; %s", name, err, remedy(name, err))
	if wanted != "" {
		return "", "", nil, errors.New(why)
	}
	end, err = enable(fallback)
	return fallback, why, end, err
}

// remedy returns the command that makes the congestion control available.
func remedy(name string, err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "to have it, type as root, outside of any container: modprobe tcp_" + name
	}
	list, _ := os.ReadFile(allowed)
	return fmt.Sprintf("to have it, type as root, outside of any container: sysctl -w net.ipv4.tcp_allowed_congestion_control=%q",
		strings.Join(append(without(name, strings.Fields(string(list))), name), " "))
}

// enable ensures that a namespace can use the congestion control.
func enable(name string) (end func(), err error) {
	if err = tryCongestion(name); err == nil {
		return func() {}, nil
	}
	if !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	if end, err = allow(name); err != nil {
		return nil, err
	}
	if err = tryCongestion(name); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// tryCongestion sets it in an unused namespace. The kernel loads the module, if there is one.
func tryCongestion(name string) error {
	s, err := newStage(name)
	if err == nil {
		s.close()
	}
	return err
}

// allow allows the congestion control in all namespaces. end removes it from the list again, but keeps other changes of
// the list.
func allow(name string) (end func(), err error) {
	change := func(how func([]string) []string) error {
		list, err := os.ReadFile(allowed)
		if err != nil {
			return err
		}
		return os.WriteFile(allowed, []byte(strings.Join(how(strings.Fields(string(list))), " ")), 0)
	}
	end = func() {
		if err := change(func(list []string) []string { return without(name, list) }); err != nil {
			log.Printf("%s stays in net.ipv4.tcp_allowed_congestion_control: %v", name, err)
		}
	}
	return end, change(func(list []string) []string { return append(list, name) })
}

func without(name string, list []string) []string {
	return slices.DeleteFunc(list, func(one string) bool { return one == name })
}
