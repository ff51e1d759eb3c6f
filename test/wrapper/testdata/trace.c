// Traces a child with options of ptrace, and prints the result of each try.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void report(const char *what, long result) {
	printf("%s: %s\n", what, result == 0 ? "done" : strerror(errno));
}

int main(void) {
	pid_t child = fork();
	if (child == 0)
		for (;;)
			pause();
	report("seize to the end", ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_TRACEEXIT));
	report("seize to the end, hidden", ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXIT));
	report("seize", ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL));
	report("interrupt", ptrace(PTRACE_INTERRUPT, child, 0, 0));
	waitpid(child, NULL, 0);
	report("options to the end", ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEEXIT));
	report("options", ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD));
	report("continue", ptrace(PTRACE_CONT, child, 0, 0));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
