// Traces a process, and keeps it from ending: the kernel stops it before its end (PTRACE_EVENT_EXIT), also after SIGKILL.
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc != 2 || ptrace(PTRACE_SEIZE, atoi(argv[1]), 0, PTRACE_O_TRACEEXIT) != 0) {
		perror("trace");
		return 1;
	}
	puts("traced");
	fflush(stdout);
	for (;;)
		pause();
}
