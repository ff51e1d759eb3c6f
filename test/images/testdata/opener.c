/* Loads each library that it is told, as any program does, and says which file that was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

int main(int argc, char **argv) {
	for (int i = 1; i < argc; i++) {
		void *lib = dlopen(argv[i], RTLD_NOW);
		struct link_map *map;
		printf("%s\n", lib && !dlinfo(lib, RTLD_DI_LINKMAP, &map) ? map->l_name : dlerror());
	}
	return 0;
}
