package ranks

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// OuterLauncher is what a rank needs to reach the MPI launcher that started it: mpirun, mpiexec or srun,
// with one container for each rank.
type OuterLauncher struct {
	// Env are variables for the container, as "KEY=value".
	Env []string
	// Dir is a directory to bind-mount at the same path, or "". It comes from the environment, so the
	// caller must check that it belongs to the user.
	Dir string
	// FD is the descriptor of the connection to the launcher, or -1. In the container it is
	// [ContainerFD].
	FD int
}

// ContainerFD is the number of FD in the container: runtimes pass on a contiguous range of descriptors
// that begins at 3.
const ContainerFD = 3

// FindOuterLauncher finds the MPI launcher of a rank that was started with this environment. The second
// result is false if there is none.
//
// Paths of the host's Open MPI are left out, because the image has its own. Open MPI's shared
// memory transport is turned off unless the user has chosen transports: it identifies processes by
// pid, all ranks have pid 1, and it would read at addresses of another process.
func FindOuterLauncher(env []string) (OuterLauncher, bool) {
	o, chosen := OuterLauncher{FD: -1}, false
	for _, e := range env {
		key, value, _ := strings.Cut(e, "=")
		if !isMPIVariable(key) {
			continue
		}
		switch key {
		case "PMI_FD":
			fd, err := strconv.Atoi(value)
			if err != nil || fd < 0 {
				continue
			}
			o.FD, e = fd, "PMI_FD="+strconv.Itoa(ContainerFD)
		case "PMIX_SERVER_TMPDIR":
			if filepath.IsAbs(value) {
				o.Dir = filepath.Clean(value)
			}
		case "OMPI_MCA_btl":
			chosen = true
		}
		o.Env = append(o.Env, e)
	}
	if !slices.ContainsFunc(o.Env, provesLauncher) {
		return OuterLauncher{FD: -1}, false
	}
	if !chosen {
		o.Env = append(o.Env, "OMPI_MCA_btl=^vader,sm") // vader is its name in Open MPI 4, sm in 5
	}
	return o, true
}

func isMPIVariable(key string) bool {
	if key == "PMIX_INSTALL_PREFIX" || key == "HYDI_CONTROL_FD" {
		return false
	}
	families := []string{
		"PMI_", "PMI2_", "PMIX_", "OMPI_", "ORTE_", "PRTE_", "MPI_LOCAL", "MPIR_CVAR_", "I_MPI_",
		"PALS_", "FLUX_", "JSM_", "MV2_", "MVP_", "SLURM_",
	}
	return slices.ContainsFunc(families, func(f string) bool { return strings.HasPrefix(key, f) })
}

// provesLauncher reports whether a variable proves that an MPI launcher started this process. OMPI_MCA_*
// and SLURM_* don't: users set the former by hand, and a Slurm job needs no MPI.
func provesLauncher(e string) bool {
	return slices.ContainsFunc([]string{"PMIX_RANK=", "PMI_RANK=", "PMI_FD=", "OMPI_COMM_WORLD_RANK=", "PMI_ID="},
		func(p string) bool { return strings.HasPrefix(e, p) })
}
