package engines

import (
	"regexp"
	"strings"
	"testing"
)

// A command in a container gets pipes, or the container's own null device, as its standard streams.
// The host's null device and files could be opened again through procfs, and given another mode.
func TestContainerdGivesNothingOfTheHosts(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range [][]string{{"forky", "v2"}, {"bookworm", "v1"}} {
		t.Run(strings.Join(on, "/"), func(t *testing.T) {
			c := newTaskRunner(t, "-given", on[0], on[1])
			c.berth(t, "run", "-d", "--name", "given", c.image, "sleep", "1000")
			defer c.berth(t, "rm", "-f", "given")
			const look = `for n in 0 1 2; do all="$all $(readlink /proc/$$/fd/$n) $(stat -L -c %d /proc/$$/fd/$n)"; done; cat; echo heard; echo $all $(stat -c %d /dev/null) done >/tmp/given`
			for _, words := range [][]string{{"exec", "given"}, {"exec", "-d", "given"}} {
				got := c.run(t, c.line(append(words, "sh", "-c", look)...)...)
				if got.code != 0 || got.err != "" || (got.out == "heard\n") != (len(words) == 2) {
					t.Errorf("%v: %+v", words, got)
				}
				c.says(t, "done\n", "exec", "given", "cat", "/tmp/given")
				said := strings.Fields(c.berth(t, "exec", "given", "cat", "/tmp/given"))
				if len(said) != 8 {
					t.Fatalf("%v: %v", words, said)
				}
				for n := range 3 {
					name, device := said[2*n], said[2*n+1]
					if !regexp.MustCompile(`^pipe:`).MatchString(name) && (name != "/dev/null" || device != said[6]) {
						t.Errorf("%v: descriptor %d is %s of the device %s, and the container's null is on %s", words, n, name, device, said[6])
					}
				}
				c.berth(t, "exec", "given", "rm", "/tmp/given")
			}
		})
	}
}
