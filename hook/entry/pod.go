package entry

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// OfPod is an error if the container only holds a pod of podman's, and has been given
// the pod's devices, which podman hands on to no other. No annotation tells such a
// container (io.podman.annotations.infra.name is also on a pod's real ones); what it
// runs does.
func OfPod(spec *specs.Spec) error {
	if !podman(spec) || spec.Process == nil ||
		!slices.Equal(spec.Process.Args, []string{"/catatonit", "-P"}) {
		return nil
	}
	asked, err := Of(spec)
	if err != nil {
		return err
	}
	r, ok, err := asked.Request()
	if err != nil || !ok {
		return err
	}
	return fmt.Errorf("request %s: the device is the pod's, and podman hands it on to none of the pod's containers: "+
		"give --device to them, and not to the pod", r)
}
