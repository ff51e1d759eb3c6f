// hang exec|map DIR FUSE: hangs in a system call on a file of a FUSE server of its own, which doesn't answer, as each user can. FUSE is a
// node like /dev/fuse. "exec": in execve(2), which closes the file and waits for the answer to FLUSH, and keeps the process's exec_update_lock ("waits" is printed then).
// "map": in mmap(2), which waits for the file's lock, that an unanswered READ of another process has, and keeps the process's mmap_lock.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(int failed, const char *what) {
	if (failed) {
		perror(what);
		exit(1);
	}
}

static void put(const char *path, const char *text) {
	int f = open(path, O_WRONLY);
	check(f < 0 || write(f, text, strlen(text)) < 0, path);
	close(f);
}

static void reply(int fd, uint64_t unique, int error, const void *data, size_t size) {
	char message[4096];
	struct fuse_out_header header = {.len = sizeof header + size, .error = error, .unique = unique};
	memcpy(message, &header, sizeof header);
	if (size)
		memcpy(message + sizeof header, data, size);
	if (write(fd, message, header.len) < 0 && errno != ENOENT)
		perror("reply");
}

static void describe(struct fuse_attr *a, uint64_t inode) {
	a->ino = inode;
	a->nlink = 1;
	a->blksize = 4096;
	a->mode = inode == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
	a->size = inode == 1 ? 0 : 1 << 16;
}

// serve answers all but FLUSH and READ.
static void serve(int fd) {
	static char in[1 << 20];
	int opens = 0;
	for (;;) {
		if (read(fd, in, sizeof in) < 0) {
			if (errno == EINTR || errno == ENOENT)
				continue;
			exit(0);
		}
		struct fuse_in_header *h = (void *)in;
		switch (h->opcode) {
		case FUSE_INIT: {
			struct fuse_init_out o = {.major = 7, .minor = 31, .max_write = 1 << 16, .max_background = 16, .congestion_threshold = 12};
			reply(fd, h->unique, 0, &o, sizeof o);
			break;
		}
		case FUSE_LOOKUP: {
			struct fuse_entry_out o = {.nodeid = 2, .attr_valid = 1 << 30, .entry_valid = 1 << 30};
			describe(&o.attr, 2);
			reply(fd, h->unique, 0, &o, sizeof o);
			break;
		}
		case FUSE_GETATTR: {
			struct fuse_attr_out o = {.attr_valid = 1 << 30};
			describe(&o.attr, h->nodeid);
			reply(fd, h->unique, 0, &o, sizeof o);
			break;
		}
		case FUSE_OPEN: { // a mapping waits until no file has direct I/O, or for the lock of a read
			struct fuse_open_out o = {.fh = ++opens, .open_flags = opens == 1 ? FOPEN_KEEP_CACHE : FOPEN_KEEP_CACHE | FOPEN_DIRECT_IO};
			reply(fd, h->unique, 0, &o, sizeof o);
			break;
		}
		case FUSE_FLUSH:
			puts("waits");
			fflush(stdout);
			break;
		case FUSE_READ: // the child's, so that the process can map the file now
			kill(getppid(), SIGUSR1);
			break;
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			break;
		default:
			reply(fd, h->unique, -ENOSYS, NULL, 0);
		}
	}
}

int main(int argc, char **argv) {
	char text[4096];
	int user = getuid(), group = getgid();
	if (argc != 4)
		return 2;
	check(mkdir(argv[2], 0755) != 0 && errno != EEXIST, argv[2]);
	check(unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
	put("/proc/self/setgroups", "deny");
	snprintf(text, sizeof text, "0 %d 1", user);
	put("/proc/self/uid_map", text);
	snprintf(text, sizeof text, "0 %d 1", group);
	put("/proc/self/gid_map", text);
	int fd = open(argv[3], O_RDWR);
	check(fd < 0, argv[3]);
	snprintf(text, sizeof text, "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
	check(mount("fuse", argv[2], "fuse", MS_NOSUID | MS_NODEV, text), "mount");
	sigset_t usr1;
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	int server = fork();
	check(server < 0, "fork");
	if (server == 0) {
		setsid(); // a signal that interrupts the other doesn't end it
		serve(fd);
	}
	close(fd);
	printf("server %d\n", server);
	fflush(stdout);
	snprintf(text, sizeof text, "%s/file", argv[2]);
	if (strcmp(argv[1], "exec") == 0) {
		check(open(text, O_RDONLY | O_CLOEXEC) < 0, text);
		execl("/proc/self/exe", argv[0], NULL);
		check(1, "exec");
	}
	int reader = fork();
	check(reader < 0, "fork");
	if (reader == 0) {
		int f = open(text, O_RDONLY);
		check(f < 0, text);
		return read(f, text, 1) < 0;
	}
	int received;
	sigwait(&usr1, &received);
	int f = open(text, O_RDONLY);
	check(f < 0, text);
	printf("maps %d\n", getpid());
	fflush(stdout);
	mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, f, 0);
	return 1;
}
