// A process whose first thread ends, and whose other thread runs.
#include <pthread.h>
#include <unistd.h>

static void *run(void *unused)
{
	for (;;)
		pause();
	return unused;
}

int main(void)
{
	pthread_t other;
	if (pthread_create(&other, NULL, run, NULL))
		return 1;
	pthread_exit(NULL);
}
