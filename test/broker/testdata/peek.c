// peek NAME looks at each process that appears in its PID namespace, until it ends or finds a file NAME in one of the directories that the
// process has open, or above one. It says "looks" first, and "found" then.

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int find(int pid, const char *name)
{
	char path[256];
	struct stat st;

	for (int fd = 3; fd < 32; fd++) {
		int length = snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);

		if (lstat(path, &st))
			continue;
		for (int up = 0; up < 8; up++) {
			length += snprintf(path + length, sizeof path - length, "/..");
			snprintf(path + length, sizeof path - length, "/%s", name);
			if (!access(path, F_OK))
				return 1;
		}
	}
	return 0;
}

// is_thread says whether pid is a thread of the first process.
static int is_thread(int pid)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/1/task/%d", pid);
	return !access(path, F_OK);
}

static int is_there(int pid)
{
	return !kill(pid, 0) || errno != ESRCH;
}

int main(int argc, char **argv)
{
	const int ahead = 16;
	int last = getpid();

	if (argc != 2)
		return 2;
	setvbuf(stdout, NULL, _IONBF, 0);
	puts("looks");
	for (;;)
		for (int pid = last + 1; pid < last + ahead; pid++) {
			if (!is_there(pid))
				continue;
			while (!is_thread(pid) && is_there(pid))
				if (find(pid, argv[1])) {
					puts("found");
					return 0;
				}
			last = pid;
		}
}
