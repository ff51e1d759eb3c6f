package ranks

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// OuterLauncher is the way from one rank to the MPI launcher that started it: mpirun, mpiexec or
// srun, each of whose ranks runs a container of its own.
type OuterLauncher struct {
	// Env belongs into the container, as "KEY=value".
	Env []string
	// Dir is a directory to bind at the same path, or "". It comes from the environment:
	// whoever binds it makes sure that it is the caller's.
	Dir string
	// FD is the descriptor that speaks to the launcher, or -1. Inside it is [ContainerFD].
	FD int
}

// ContainerFD is the number of the launcher's descriptor inside, whatever it was outside:
// runtimes pass on the first ones without a gap, and the launcher's others are its own.
const ContainerFD = 3

// FindOuterLauncher says how a rank that was started with this environment takes part in its job. The
// second result is false if no MPI launcher shows in it.
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
		o.Env = append(o.Env, "OMPI_MCA_btl=^vader,sm") // the name of 4, and that of 5
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
