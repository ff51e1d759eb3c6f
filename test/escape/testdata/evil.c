/* A library of a hostile image. Loaded by a program that sees the host's files, it
   leaves a mark there; the path is written over the placeholder. */
#include <fcntl.h>
#include <unistd.h>

char mark[] = "@MARK@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@"
	      "@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@";

__attribute__((constructor)) static void run(void) { close(open(mark, O_WRONLY | O_CREAT, 0644)); }

int helper(void) { return 0; }
unsigned la_version(unsigned version) { return version; }
