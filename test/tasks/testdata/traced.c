// A process that its own child traces: the child keeps every signal from it.
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
	pid_t parent = getpid();
	int ready[2];
	if (pipe(ready) != 0)
		return 1;
	pid_t child = fork();
	if (child < 0)
		return 1;
	if (child == 0) {
		char c;
		if (read(ready[0], &c, 1) != 1 || ptrace(PTRACE_SEIZE, parent, 0, 0) != 0) {
			perror("trace");
			return 1;
		}
		puts("traced");
		fflush(stdout);
		while (waitpid(parent, NULL, __WALL) == parent)
			ptrace(PTRACE_CONT, parent, 0, 0);
		return 0;
	}
	prctl(PR_SET_PTRACER, child);
	if (write(ready[1], "", 1) != 1)
		return 1;
	for (;;)
		pause();
}
