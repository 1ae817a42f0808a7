//go:build !linux

package fdstore

import (
	"context"
	"os"
	"time"

	"github.com/sirupsen/logrus"
)

// Manager does nothing on other systems.
type Manager struct {
	Kept     map[string][]*os.File
	Restarts int
	Why      string
	Crashed  time.Time
}

// FromEnvironment returns nil.
func FromEnvironment(logrus.FieldLogger) (*Manager, error) { return nil, nil }

// The methods of a manager.
func (m *Manager) Notify(string)                      {}
func (m *Manager) Put(string, func() *os.File) bool   { return false }
func (m *Manager) Remove(string)                      {}
func (m *Manager) Take(string) []*os.File             { return nil }
func (m *Manager) Forget()                            {}
func (m *Manager) Wait(time.Duration)                 {}
func (m *Manager) Watch(context.Context, func() bool) {}
