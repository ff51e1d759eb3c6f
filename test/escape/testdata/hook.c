/* The naive injector's hook, as the field had it: linked dynamically, run in the
   image's root with the image's environment, looking things up by name. */
#include <dlfcn.h>
#include <stdlib.h>

int helper(void);

int main(void) {
	int failed = helper();
	dlopen("./plugin.so", RTLD_NOW);
	return failed + 0 * system("naive-helper >/dev/null 2>&1 </dev/null");
}
