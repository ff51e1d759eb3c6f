#include "textflag.h"

// entry is where the kernel starts the program (linker flag -E): it has begin look
// whether Go's runtime is needed at all. Then it looks at what the process was given
// before that runtime changes it, and goes on to the runtime's own entry, with the
// stack as it was but for what alone has made of its words.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	SUBQ	$32, SP
	// arch_prctl(ARCH_SET_FS): functions in Go look there for g, which none of these
	// uses, and Go's runtime sets its own.
	MOVQ	$158, AX
	MOVQ	$0x1002, DI
	LEAQ	·thread+64(SB), SI
	SYSCALL
	// begin(SP), as Go calls the value of a function.
	MOVQ	·begin(SB), DX
	LEAQ	32(SP), AX
	XORPS	X15, X15
	MOVQ	(DX), CX
	CALL	CX
	// R15: alone(SP)
	MOVQ	·alone(SB), DX
	LEAQ	32(SP), AX
	XORPS	X15, X15
	MOVQ	(DX), CX
	CALL	CX
	MOVQ	AX, R15
	ADDQ	$32, SP
	// rt_sigprocmask(SIG_BLOCK, NULL, &blocked, 8)
	MOVQ	$14, AX
	MOVQ	$0, DI
	MOVQ	$0, SI
	LEAQ	·blocked(SB), DX
	MOVQ	$8, R10
	SYSCALL
	// R13: signal number, R14: set of ignored signals
	MOVQ	$1, R13
	MOVQ	$0, R14
signal:
	// rt_sigaction(R13, NULL, &action, 8)
	MOVQ	$13, AX
	MOVQ	R13, DI
	MOVQ	$0, SI
	LEAQ	·action(SB), DX
	MOVQ	$8, R10
	SYSCALL
	CMPQ	AX, $0
	JNE	next
	CMPQ	·action(SB), $1	// SIG_IGN
	JNE	next
	MOVQ	R13, CX
	DECQ	CX
	MOVQ	$1, AX
	SHLQ	CX, AX
	ORQ	AX, R14
next:
	INCQ	R13
	CMPQ	R13, $64
	JLE	signal
	MOVQ	R14, ·ignored(SB)
	// R13: descriptor, R14: set of closed descriptors
	MOVQ	$0, R13
	MOVQ	$0, R14
descriptor:
	// fcntl(R13, F_GETFD)
	MOVQ	$72, AX
	MOVQ	R13, DI
	MOVQ	$1, SI
	SYSCALL
	CMPQ	AX, $0
	JGE	open
	MOVQ	R13, CX
	MOVQ	$1, AX
	SHLQ	CX, AX
	ORQ	AX, R14
open:
	INCQ	R13
	CMPQ	R13, $3
	JLT	descriptor
	MOVQ	R14, ·closed(SB)
	// prctl(PR_GET_TIMERSLACK); prctl(PR_SET_TIMERSLACK, 1 ms)
	MOVQ	$157, AX
	MOVQ	$30, DI
	SYSCALL
	CMPQ	AX, $0
	JLE	slack
	MOVQ	AX, ·slack(SB)
	MOVQ	$157, AX
	MOVQ	$29, DI
	MOVQ	$1000000, SI
	SYSCALL
slack:
	MOVQ	$1, ·known(SB)
	MOVQ	0(R15), DI
	LEAQ	8(R15), SI
	JMP	runtime·rt0_go(SB)
