/* The library that the naive injector's hook is linked with. */
int helper(void) { return 0; }
