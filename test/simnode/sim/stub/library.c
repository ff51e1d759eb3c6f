/* A driver library that does nothing: it is here to be found and loaded. */
__attribute__((visibility("default"))) const char *simnode_stub(void) { return "simulated driver library"; }
