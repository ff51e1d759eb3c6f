package apptainer

// Reasons for differences.
const (
	leasedOnly   = "a command has the devices of its lease"
	libsOfDriver = "the driver's libraries are where the loader's cache finds them"
	chosenFiles  = "NVIDIA_DRIVER_CAPABILITIES chooses the driver's files, by default those of utility and compute"
)

// The server's driver is a stub for eight GPUs, which ldconfig knows.
var gpuUses = []use{
	{name: "--nv: a program of the driver", script: `apptainer exec --nv /images/debian.sif nvidia-smi -L | cut -d'(' -f1`, differs: leasedOnly},
	{name: "--nv: libraries", script: `apptainer exec --nv /images/debian.sif ls /.singularity.d/libs`, differs: libsOfDriver},
	{name: "--nv: libraries can't be written", script: `apptainer exec --nv /images/debian.sif sh -c 'touch /.singularity.d/libs/a; : >>/.singularity.d/libs/libcuda.so.1'`, differs: libsOfDriver},
	{name: "--nv: programs", script: `apptainer exec --nv /images/debian.sif sh -c 'ls /usr/bin/nvidia*'; apptainer exec --nv /images/bare.sif ls /usr/bin`, differs: chosenFiles},
	{name: "--nv: LD_LIBRARY_PATH", script: `APPTAINERENV_LD_LIBRARY_PATH=/mine apptainer exec --nv /images/debian.sif sh -c 'echo $LD_LIBRARY_PATH'`},
	{name: "--nv: devices", script: `apptainer exec --nv /images/bare.sif sh -c 'ls /dev | grep -E "nvidia([0-9]|ctl|-uvm)$"'`, differs: leasedOnly},
	{name: "--nv: devices with --contain", script: `apptainer exec -c --nv /images/bare.sif ls /dev`, differs: leasedOnly},
	{name: "--nv: chosen devices", script: `CUDA_VISIBLE_DEVICES=1,2 NVIDIA_VISIBLE_DEVICES=3 apptainer exec -c --nv /images/bare.sif sh -c 'echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES; ls /dev | grep -c "nvidia[0-9]"'`, differs: "the variables' indexes are those of the server, and the lease has one GPU"},
	{name: "--nv: --cleanenv and CUDA_VISIBLE_DEVICES", script: `CUDA_VISIBLE_DEVICES=1 apptainer exec -e --nv /images/bare.sif sh -c 'echo ${CUDA_VISIBLE_DEVICES-unset}'`},
	{name: "--nv: APPTAINER_NV", script: `APPTAINER_NV=1 apptainer exec /images/bare.sif ls /.singularity.d/libs/libcuda.so.1`, differs: libsOfDriver},
	{name: "--nv: other files", script: `apptainer exec --nv /images/bare.sif sh -c 'find /usr/share/vulkan /usr/share/egl /usr/share/glvnd /usr/share/nvidia -type f | sort; ls /run'`, differs: chosenFiles},
	{name: "--nv with run, --app and shell", script: `apptainer run --nv /images/full.sif; echo 'ls /.singularity.d/libs/libcuda.so.1' | apptainer shell --nv /images/bare.sif`, differs: libsOfDriver},
	{name: "--nv: a directory of another user", script: `apptainer exec --nv /opt/foreign ls /usr/bin/nvidia-smi`},
	{name: "without --nv", script: `apptainer exec /images/bare.sif ls -A /.singularity.d/libs`},
	{name: "--nvccli without nvidia-container-cli", script: `apptainer exec --nvccli /images/bare.sif true`, differs: "it is --nv, and needs no other program"},
	{name: "--rocm without a driver", script: `apptainer exec --rocm /images/bare.sif echo a`, differs: "there are no leases of AMD GPUs"},
}
