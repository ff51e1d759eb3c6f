package ranks

import (
	"slices"
	"strings"
)

// Scrub returns a copy of the environment without the variables that an outer launcher (Slurm, mpirun,
// torchrun, horovodrun, another gang) has set for the process that starts the container. With them a
// rank would join, or wait for, a job that isn't its own. Variables that users set for tuning stay.
func Scrub(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		key, _, _ := strings.Cut(e, "=")
		return isLeaked(key)
	})
}

func isLeaked(key string) bool {
	return slices.Contains(leakedNames(), key) ||
		slices.ContainsFunc(leakedPrefixes(), func(p string) bool { return strings.HasPrefix(key, p) })
}

// leakedPrefixes returns prefixes of variables that are only meant for ranks of the outer launcher.
func leakedPrefixes() []string {
	return []string{
		// Slurm, its steps and its plugins
		"SLURM_", "SLURMD_", "SLURM2_", "SRUN_", "SBATCH_", "SALLOC_",
		// process managers: PMI-1 and -2, PMIx, Hydra, PALS, Flux, LSF's jsrun, PBS
		"PMI_", "PMI2_", "PMIX", "HYDI_", "HYDRA_", "MPIEXEC_", "PALS_", "ALPS_", "FLUX_", "JSM_", "PBS_", "LSB_",
		// Open MPI and its runtimes; Intel's and MVAPICH's
		"OMPI_", "ORTE_", "PRTE_", "OPAL_", "I_MPI_HYDRA_", "I_MPI_INFO_", "MV2_COMM_WORLD_", "MVP_COMM_WORLD_",
		// torchrun, and a gang
		"TORCHELASTIC_", "HOROVOD_GLOO_", "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "BERTH_RANK_", "BERTH_ROLE",
	}
}

// leakedNames returns variables of outer launchers that share a prefix with variables of users.
func leakedNames() []string {
	return []string{
		"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
		"ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
		"HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "HOROVOD_ELASTIC",
		"TF_CONFIG",
		"JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID",
		"JAX_LOCAL_DEVICE_IDS", "NUM_PROCESSES", "PROCESS_ID",
		"MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MPI_LOCALRANKID_OFFSET", "I_MPI_MPIRUN",
		"NCCL_HOSTID", "NCCL_RAS_ADDR", "NCCL_COMM_ID", "BERTH_GANG",
	}
}
