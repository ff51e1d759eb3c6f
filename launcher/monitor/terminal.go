package monitor

import (
	"fmt"

	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// receiveTerminal receives the terminal that the runtime has sent. The runtime has ended.
func (m *monitor) receiveTerminal(c *ociruntime.Console) error {
	c.StopWaiting()
	master, err := c.Terminal()
	if err != nil {
		return fmt.Errorf("receive the container's terminal from %s: %w", m.runtime.Name(), err)
	}
	m.tty = master
	m.server.setInput(master)
	return m.out.addTerminal(logs.Stdout, master)
}

// closeTerminal closes the terminal of a life.
func (m *monitor) closeTerminal() {
	if m.tty == nil {
		return
	}
	m.server.setInput(nil)
	m.out.removeTerminal(m.tty)
	m.tty.Close()
	m.tty = nil
}
