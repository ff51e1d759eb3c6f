/* A runtime that says how it was started, one fact a line. Called as "launcher" it
   makes an odd environment first and execs the program named by its last argument,
   with the arguments before it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static int launch(int argc, char **argv) {
	int ignore[] = { SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGPIPE, SIGCHLD, SIGTERM, SIGTSTP, SIGURG, 40, 64 };
	int block[] = { SIGCHLD, SIGWINCH, SIGUSR2, SIGTERM, 45 };
	char *env[] = { "A=1", "A=2", "odd", "LISTEN_FDS=2", "B=with\nnewline", getenv("BERTH_CONFIG_ENTRY"), "PATH=/usr/bin:/bin", NULL };
	for (size_t i = 0; i < sizeof ignore / sizeof *ignore; i++) signal(ignore[i], SIG_IGN);
	sigset_t set;
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof block / sizeof *block; i++) sigaddset(&set, block[i]);
	sigprocmask(SIG_SETMASK, &set, NULL);
	struct rlimit files = { 1000, 4000 };
	setrlimit(RLIMIT_NOFILE, &files);
	prctl(PR_SET_PDEATHSIG, SIGUSR1);
	prctl(PR_SET_TIMERSLACK, 123456);
	umask(031);
	close(0);
	int fd = open("/dev/null", O_RDONLY); /* 0 again, to take 3 and 5 elsewhere */
	dup2(fd, 3);
	dup2(fd, 5);
	fcntl(5, F_SETFL, O_NONBLOCK);
	if (getenv("KEEP_STDIN") == NULL) close(0);
	char *program = argv[argc - 1];
	argv[argc - 1] = NULL;
	argv[0] = program;
	execve(program, argv, env);
	return 127;
}

int main(int argc, char **argv) {
	char line[4096], *base = strrchr(argv[0], '/');
	if (strcmp(base ? base + 1 : argv[0], "launcher") == 0) return launch(argc, argv);
	FILE *f = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, f))
		if ((strncmp(line, "Sig", 3) == 0 && line[3] != 'Q') || strncmp(line, "Shd", 3) == 0 || strncmp(line, "Cap", 3) == 0 ||
		    strncmp(line, "Threads", 7) == 0 || strncmp(line, "Cpus_allowed_list", 17) == 0 || strncmp(line, "NoNewPrivs", 10) == 0)
			fputs(line, stdout);
	fclose(f);
	for (int i = 0; i < argc; i++) printf("argv %d %s\n", i, argv[i]);
	for (char **e = environ; *e; e++) printf("env %s\n", *e);
	for (int fd = 0; fd < 64; fd++) {
		char link[64];
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		ssize_t n = fd == 1 || fd == 2 ? 0 : readlink(link, line, sizeof line - 1);
		if (n < 0) continue;
		line[n] = 0;
		printf("fd %d %s flags %x %x\n", fd, line, fcntl(fd, F_GETFD), fcntl(fd, F_GETFL));
	}
	for (int r = 0; r < RLIM_NLIMITS; r++) {
		struct rlimit l;
		getrlimit(r, &l);
		printf("limit %d %llx %llx\n", r, (unsigned long long)l.rlim_cur, (unsigned long long)l.rlim_max);
	}
	int death;
	prctl(PR_GET_PDEATHSIG, &death);
	printf("pdeathsig %d\n", death);
	printf("timerslack %d\n", prctl(PR_GET_TIMERSLACK));
	mode_t mask = umask(0);
	printf("umask %o nice %d scheduler %d\n", mask, getpriority(PRIO_PROCESS, 0), sched_getscheduler(0));
	printf("cwd %s\n", getcwd(line, sizeof line));
	printf("pgid %d sid %d\n", getpgrp() == getpid(), getsid(0) == getpid());
	printf("pid %d ppid %d\n", getpid(), getppid());
	return 42;
}
