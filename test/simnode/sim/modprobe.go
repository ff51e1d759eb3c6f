package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// loaders are the programs that a bare node has for loading modules and making
// nodes: links to the program that made the node, which asks [Loader].
func loaders() []string { return []string{"modprobe", "nvidia-modprobe"} }

// Loader acts as modprobe, as nvidia-modprobe or as a node's services if the program was called by
// such a name, and reports whether it was. Each program that makes nodes calls it first.
func Loader(argv []string) (was bool, err error) {
	switch filepath.Base(argv[0]) {
	case "modprobe":
		return true, modprobe(argv[1:])
	case "nvidia-modprobe":
		return true, nvidiaModprobe(argv[1:])
	case servicesName:
		return true, services(argv[1:])
	}
	return false, nil
}

// modprobe loads nvidia-uvm; NVIDIA's other modules are loaded already, and
// there are no others.
func modprobe(args []string) error {
	for _, name := range args {
		name = strings.ReplaceAll(name, "_", "-")
		switch {
		case name == "nvidia-uvm":
			if err := Control("uvm", "load"); err != nil {
				return err
			}
		case strings.HasPrefix(name, "-"), strings.HasPrefix(name, "nvidia"):
		default:
			return fmt.Errorf("module %s not found: this node is simulated", name)
		}
	}
	return nil
}

// nvidiaModprobe understands -u (uvm), -m (modeset), -c MINOR (make that node)
// and -f FILE (make a capability's node), alone or with the number attached.
func nvidiaModprobe(args []string) error {
	var uvm, modeset bool
	var minors, files []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-u":
			uvm = true
		case a == "-m":
			modeset = true
		case (a == "-c" || a == "-f") && i+1 < len(args):
			i++
			if a == "-f" {
				files = append(files, args[i])
			} else {
				minors = append(minors, args[i])
			}
		case strings.HasPrefix(a, "-c="):
			minors = append(minors, a[3:])
		}
	}
	if uvm {
		if err := Control("uvm", "load"); err != nil {
			return err
		}
	}
	n, err := Current()
	if err != nil {
		return err
	}
	return n.modprobeNodes(uvm, modeset, minors, files)
}

func (n Node) modprobeNodes(uvm, modeset bool, minors, files []string) error {
	var wanted []device
	for _, word := range minors {
		minor, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("minor %q isn't a number", word)
		}
		switch {
		case uvm:
			wanted = append(wanted, device{"nvidia-uvm", n.Majors["nvidia-uvm"], minor, 0o666},
				device{"nvidia-uvm-tools", n.Majors["nvidia-uvm"], minor + 1, 0o666})
		case modeset:
			wanted = append(wanted, device{"nvidia-modeset", majorNVIDIA, 254, 0o666})
		case minor == 255:
			wanted = append(wanted, device{"nvidiactl", majorNVIDIA, 255, 0o666})
		default:
			wanted = append(wanted, device{"nvidia" + word, majorNVIDIA, minor, 0o666})
		}
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read capability: %w", err)
		}
		var minor int
		if _, err := fmt.Sscanf(string(b), "DeviceFileMinor: %d", &minor); err != nil {
			return fmt.Errorf("parse %s: %w", file, err)
		}
		wanted = append(wanted, device{fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), n.Majors["nvidia-caps"], minor, 0o444})
	}
	return renewNodes(nil, wanted)
}
