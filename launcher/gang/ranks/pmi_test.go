package ranks

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindOuterLauncher(t *testing.T) {
	const noShm = "OMPI_MCA_btl=^vader,sm"
	for _, tc := range []struct {
		name string
		env  []string
		want OuterLauncher
		none bool
	}{
		{
			name: "Open MPI",
			env: []string{
				"PATH=/bin", "OMPI_COMM_WORLD_RANK=2", "PMIX_RANK=2", "PMIX_SERVER_URI41=1.0;tcp4://127.0.0.1:33361",
				"PMIX_SERVER_TMPDIR=/tmp/ompi.host.0/pid.7/", "PMIX_INSTALL_PREFIX=/opt/mpi", "OPAL_PREFIX=/opt/mpi", "LD_LIBRARY_PATH=/opt/mpi/lib",
			},
			want: OuterLauncher{
				Env: []string{
					"OMPI_COMM_WORLD_RANK=2", "PMIX_RANK=2", "PMIX_SERVER_URI41=1.0;tcp4://127.0.0.1:33361",
					"PMIX_SERVER_TMPDIR=/tmp/ompi.host.0/pid.7/", noShm,
				},
				Dir: "/tmp/ompi.host.0/pid.7", FD: -1,
			},
		},
		{
			name: "Hydra",
			env:  []string{"PMI_FD=8", "PMI_RANK=1", "PMI_SIZE=2", "HYDI_CONTROL_FD=7", "MPI_LOCALRANKID=1", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME=n"},
			want: OuterLauncher{
				Env: []string{"PMI_FD=3", "PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME=n", noShm},
				FD:  8,
			},
		},
		{
			name: "transports are chosen",
			env:  []string{"PMIX_RANK=0", "OMPI_MCA_btl=self,tcp"},
			want: OuterLauncher{Env: []string{"PMIX_RANK=0", "OMPI_MCA_btl=self,tcp"}, FD: -1},
		},
		{
			name: "odd values", env: []string{"PMIX_RANK=0", "PMI_FD=-4", "PMI_FD=x", "PMIX_SERVER_TMPDIR=tmp"},
			want: OuterLauncher{Env: []string{"PMIX_RANK=0", "PMIX_SERVER_TMPDIR=tmp", noShm}, FD: -1},
		},
		{name: "no launcher", env: []string{"OMPI_MCA_btl=self,tcp", "SLURM_JOB_ID=7", "RANK=1", "PMIX_VERSION=4"}, want: OuterLauncher{FD: -1}, none: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := FindOuterLauncher(tc.env)
			if diff := cmp.Diff(tc.want, got); diff != "" || ok == tc.none {
				t.Errorf("%v (-want +got):\n%s", ok, diff)
			}
		})
	}
}
