/* The program inside the container: it does what it is told, one command a line of
   its standard input, and answers each with lines, the last of which is ".".

     open PATH      as reader, writer and both: "ok" or the error's name, each
     make PATH      a new file and a new directory there: "ok" or the error's name, each
     connect PATH   to the socket: "ok" or the error's name
     memory         "ok" or the error's name of setting, asking for and binding by
                    NUMA memory policy
     size DIR       of its file system, in MiB
     ls DIR         the names in it, in order, or the error's name
     link PATH      where it leads
     cat PATH       the file's bytes, a NUL being the end of a line

   It is static, so that it runs in any root. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static const char *result(int fd) {
	if (fd < 0) return strerrorname_np(errno);
	close(fd);
	return "ok";
}

static const char *try(const char *path, int how) {
	return result(open(path, how | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600));
}

static const char *try_connect(const char *path) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (strlen(path) >= sizeof a.sun_path) return "ENAMETOOLONG";
	strcpy(a.sun_path, path);
	if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
		const char *e = strerrorname_np(errno);
		close(fd);
		return e;
	}
	return result(fd);
}

static int visible(const struct dirent *e) { return strcmp(e->d_name, ".") && strcmp(e->d_name, ".."); }

static void ls(const char *path) {
	struct dirent **names;
	int n = scandir(path, &names, visible, alphasort);
	if (n < 0) printf("%s\n", strerrorname_np(errno));
	for (int i = 0; i < n; i++) printf("%s\n", names[i]->d_name);
}

static void show_link(const char *path) {
	char to[1000];
	ssize_t n = readlink(path, to, sizeof to);
	if (n < 0) printf("%s\n", strerrorname_np(errno));
	else printf("%.*s\n", (int)n, to);
}

static void cat(const char *path) {
	int c, last = '\n';
	FILE *f = fopen(path, "r");
	if (!f) {
		printf("%s\n", strerrorname_np(errno));
		return;
	}
	while ((c = getc(f)) != EOF) putchar(last = c ? c : '\n');
	if (last != '\n') putchar('\n');
	fclose(f);
}

static void memory(void) {
	void *page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long results[] = {
		syscall(SYS_set_mempolicy, 0, 0, 0), errno, syscall(SYS_get_mempolicy, 0, 0, 0, 0, 0), errno,
		syscall(SYS_mbind, page, 4096, 0, 0, 0, 0), errno,
	};
	for (int i = 0; i < 6; i += 2) printf("%s\n", results[i] < 0 ? strerrorname_np((int)results[i + 1]) : "ok");
}

int main(void) {
	char line[1024], path[1000];
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "open %999s", path) == 1)
			printf("%s %s %s\n", try(path, O_RDONLY), try(path, O_WRONLY), try(path, O_RDWR));
		else if (sscanf(line, "make %999s", path) == 1) {
			const char *file = try(path, O_CREAT | O_EXCL | O_WRONLY);
			unlink(path);
			printf("%s %s\n", file, mkdir(path, 0700) ? strerrorname_np(errno) : "ok");
			rmdir(path);
		} else if (sscanf(line, "connect %999s", path) == 1) printf("%s\n", try_connect(path));
		else if (!strcmp(line, "memory\n")) memory();
		else if (sscanf(line, "size %999s", path) == 1) {
			struct statvfs s = {0};
			statvfs(path, &s);
			printf("%llu\n", (unsigned long long)s.f_blocks * s.f_frsize >> 20);
		} else if (sscanf(line, "ls %999s", path) == 1) ls(path);
		else if (sscanf(line, "link %999s", path) == 1) show_link(path);
		else if (sscanf(line, "cat %999s", path) == 1) cat(path);
		else printf("unknown command\n");
		printf(".\n");
		fflush(stdout);
	}
	return 0;
}
