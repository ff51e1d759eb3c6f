/* What containers do while others look at them: it waits for SIGTERM, and ends well. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void end(int signal) {
	(void)signal;
	_exit(0);
}

int main(void) {
	signal(SIGTERM, end);
	signal(SIGINT, end);
	for (;;) pause();
}
