package run

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/gang/ranks"
)

// readMPI makes the task a rank of the MPI job whose launcher has started this process: the
// task gets the launcher's variables, directory and descriptor. Variables of --env replace
// the launcher's.
func readMPI(c *cli.Context, o *launcher.Options) error {
	if !c.Bool("mpi") {
		return nil
	}
	switch {
	case isGang(c):
		return errors.New("--mpi is for ranks that mpirun or srun starts; the ranks of a gang don't need it")
	case c.Bool("detach"):
		return errors.New("--mpi: an MPI launcher waits for its ranks, so they can't be detached")
	case o.Network != "host":
		return fmt.Errorf("--mpi: ranks reach their launcher by the host's network, and not with --network %s", o.Network)
	}
	outer, ok := ranks.FindOuterLauncher(os.Environ())
	if !ok {
		return errors.New("--mpi: no MPI launcher has started this: mpirun -n 4 berth run --mpi IMAGE COMMAND")
	}
	o.Env = append(outer.Env, o.Env...)
	if outer.Dir != "" {
		if err := checkOwnDirectory(outer.Dir); err != nil {
			return fmt.Errorf("--mpi: the launcher's directory: %w", err)
		}
		o.Volumes = append(o.Volumes, outer.Dir+":"+outer.Dir)
	}
	if outer.FD < 0 {
		return nil
	}
	// Above the low descriptors, which the task uses.
	fd, err := unix.FcntlInt(uintptr(outer.FD), unix.F_DUPFD_CLOEXEC, ranks.ContainerFD+1)
	if err != nil {
		return fmt.Errorf("--mpi: PMI_FD is %d: %w", outer.FD, err)
	}
	if err := checkSocket(fd); err != nil {
		return errors.Join(fmt.Errorf("--mpi: PMI_FD is %d: %w", outer.FD, err), unix.Close(fd))
	}
	o.Channel = os.NewFile(uintptr(fd), "PMI_FD")
	return nil
}

// checkOwnDirectory refuses a directory that belongs to neither this user nor root. The path
// comes from the environment, which another user may have set.
func checkOwnDirectory(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || strings.Contains(path, ":") || !ok || st.Uid != 0 && int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s isn't a directory of this user's", path)
	}
	return nil
}

// checkSocket refuses a descriptor that is no socket: the task must not get an open file or
// directory of the host.
func checkSocket(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("it isn't a socket")
	}
	return nil
}
