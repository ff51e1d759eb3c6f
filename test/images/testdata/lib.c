const char *where(void) { return "a library that is none of the driver's"; }
