#include "textflag.h"

// func raw(number, a, b, c, d uintptr) uintptr
TEXT ·raw(SB), NOSPLIT, $0-48
	MOVQ	number+0(FP), AX
	MOVQ	a+8(FP), DI
	MOVQ	b+16(FP), SI
	MOVQ	c+24(FP), DX
	MOVQ	d+32(FP), R10
	SYSCALL
	MOVQ	AX, ret+40(FP)
	RET

// func spawn(path, argv, envp, parent uintptr, failed unsafe.Pointer) uintptr
//
// The child shares memory and stack, and the caller waits until it has become another
// program or ended: it may use registers alone.
TEXT ·spawn(SB), NOSPLIT, $0-48
	MOVQ	path+0(FP), R12
	MOVQ	argv+8(FP), R13
	MOVQ	envp+16(FP), BX
	MOVQ	parent+24(FP), R9
	MOVQ	failed+32(FP), R15
	// clone(CLONE_VM|CLONE_VFORK|SIGCHLD, 0, 0, 0, 0)
	MOVQ	$56, AX
	MOVQ	$0x4111, DI
	MOVQ	$0, SI
	MOVQ	$0, DX
	MOVQ	$0, R10
	MOVQ	$0, R8
	SYSCALL
	CMPQ	AX, $0
	JNE	parent
	// prctl(PR_SET_PDEATHSIG, SIGKILL)
	MOVQ	$157, AX
	MOVQ	$1, DI
	MOVQ	$9, SI
	SYSCALL
	// getppid(): the parent may have ended before
	MOVQ	$110, AX
	SYSCALL
	CMPQ	AX, R9
	JNE	end
	// execve(path, argv, envp)
	MOVQ	$59, AX
	MOVQ	R12, DI
	MOVQ	R13, SI
	MOVQ	BX, DX
	SYSCALL
	MOVQ	AX, (R15)
end:
	// exit_group(127)
	MOVQ	$231, AX
	MOVQ	$127, DI
	SYSCALL
	JMP	end
parent:
	MOVQ	AX, ret+40(FP)
	RET
