// allreduce sums the ranks' numbers over all of them, and says what came out.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	enum { count = 4096 };
	static double mine[count], sum[count];
	int rank, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (int i = 0; i < count; i++)
		mine[i] = rank + i;
	MPI_Allreduce(mine, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++) {
		double want = (double)size * (size - 1) / 2 + (double)size * i;
		if (sum[i] != want) {
			fprintf(stderr, "rank %d: element %d is %g, not %g\n", rank, i, sum[i], want);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	printf("rank %d of %d: the sums agree\n", rank, size);
	MPI_Finalize();
	return EXIT_SUCCESS;
}
