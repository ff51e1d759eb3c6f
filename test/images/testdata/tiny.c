/*
 * Loads libcuda.so.1 and says which file that was, or why it can't. It needs nothing of
 * a C library but these functions, so that it can be linked against any.
 */
void *dlopen(const char *, int);
char *dlerror(void);
int puts(const char *);
__attribute__((noreturn)) void exit(int);

/* What dlopen returns begins with the library's address and its name: in glibc and in musl. */
struct library {
	void *address;
	const char *name;
};

__attribute__((force_align_arg_pointer, noreturn)) void _start(void)
{
	struct library *lib = dlopen("libcuda.so.1", 2 /* RTLD_NOW */);

	puts(lib ? lib->name : dlerror());
	exit(0);
}
