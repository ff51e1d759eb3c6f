/* A driver program that does nothing but say so. */
#include <stdio.h>

int main(int argc, char **argv) {
	(void)argc;
	printf("%s: part of a simulated driver\n", argv[0]);
	return 0;
}
