package spec_test

import (
	"fmt"

	"github.com/berth-gpu/berth/launcher/spec"
)

// Words of docker's command line come to what the runtime is told.
func ExampleParseMount() {
	m, err := spec.ParseMount("type=tmpfs,dst=/scratch,tmpfs-size=1g")
	fmt.Println(m.Type, m.Destination, m.Options, err)
	_, err = spec.ParseMount("type=volume,src=data,dst=/data")
	fmt.Println(err)
	// Output:
	// tmpfs /scratch [nosuid nodev noexec size=1073741824 mode=1777] <nil>
	// --mount type=volume,src=data,dst=/data: berth has no volumes with names; type=bind,src=DIR,dst=… binds a directory of the host, type=tmpfs,dst=… is empty memory
}

func ExampleParseUlimit() {
	l, err := spec.ParseUlimit("nofile=1024:2048")
	fmt.Println(l.Type, l.Soft, l.Hard, err)
	// Output: RLIMIT_NOFILE 1024 2048 <nil>
}
