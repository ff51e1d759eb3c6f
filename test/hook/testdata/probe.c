/* The program inside the container: it does what it is told, one command a line of its
   standard input, or of a file that it is given, and answers each with lines, the last
   of which is ".".

     open PATH   as reader, writer and both: "ok" or the error's name, each
     tree DIR    what is below DIR: path, mode, owner and device number
     cat PATH    the file's bytes, a NUL being the end of a line
     mknod PATH MAJOR MINOR   a character device: "ok" or the error's name
     memory      sets its NUMA memory policy to the default: "ok" or the error's name
     size DIR    of its file system, in MiB

   It is static, so that it runs in any root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char *try(const char *path, int how) {
	int fd = open(path, how | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0) return strerrorname_np(errno);
	close(fd);
	return "ok";
}

static int show(const char *path, const struct stat *st, int kind, struct FTW *at) {
	(void)kind, (void)at;
	printf("%s %o %u:%u", path, st->st_mode, st->st_uid, st->st_gid);
	if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)) printf(" %u:%u", major(st->st_rdev), minor(st->st_rdev));
	printf("\n");
	return 0;
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

int main(int argc, char **argv) {
	char line[1024], path[1000];
	unsigned ma, mi;
	if (argc > 1 && !freopen(argv[1], "r", stdin)) return 1;
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "open %999s", path) == 1)
			printf("%s %s %s\n", try(path, O_RDONLY), try(path, O_WRONLY), try(path, O_RDWR));
		else if (sscanf(line, "tree %999s", path) == 1) nftw(path, show, 16, FTW_PHYS | FTW_MOUNT);
		else if (sscanf(line, "cat %999s", path) == 1) cat(path);
		else if (sscanf(line, "mknod %999s %u %u", path, &ma, &mi) == 3)
			printf("%s\n", mknod(path, S_IFCHR | 0666, makedev(ma, mi)) ? strerrorname_np(errno) : "ok");
		else if (!strcmp(line, "memory\n"))
			printf("%s\n", syscall(SYS_set_mempolicy, 0, 0, 0) ? strerrorname_np(errno) : "ok");
		else if (sscanf(line, "size %999s", path) == 1) {
			struct statvfs s = {0};
			statvfs(path, &s);
			printf("%llu\n", (unsigned long long)s.f_blocks * s.f_frsize >> 20);
		} else printf("unknown command\n");
		printf(".\n");
		fflush(stdout);
	}
	return 0;
}
