/* A management library that ends the process which calls it, as a broken driver's does. */
#include <signal.h>

int nvmlInit_v2(void) { return raise(SIGSEGV); }
const char *nvmlErrorString(int code) { return code ? "an error" : "success"; }
