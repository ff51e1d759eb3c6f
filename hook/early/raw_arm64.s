#include "textflag.h"

// func raw(number, a, b, c, d uintptr) uintptr
TEXT ·raw(SB), NOSPLIT, $0-48
	MOVD	number+0(FP), R8
	MOVD	a+8(FP), R0
	MOVD	b+16(FP), R1
	MOVD	c+24(FP), R2
	MOVD	d+32(FP), R3
	SVC
	MOVD	R0, ret+40(FP)
	RET

// func spawn(path, argv, envp, parent uintptr, failed unsafe.Pointer) uintptr
//
// The child shares memory and stack, and the caller waits until it has become another
// program or ended: it may use registers alone.
TEXT ·spawn(SB), NOSPLIT, $0-48
	MOVD	path+0(FP), R9
	MOVD	argv+8(FP), R10
	MOVD	envp+16(FP), R11
	MOVD	parent+24(FP), R12
	MOVD	failed+32(FP), R13
	// clone(CLONE_VM|CLONE_VFORK|SIGCHLD, 0, 0, 0, 0)
	MOVD	$0x4111, R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8
	SVC
	CBNZ	R0, parent
	// prctl(PR_SET_PDEATHSIG, SIGKILL)
	MOVD	$1, R0
	MOVD	$9, R1
	MOVD	$167, R8
	SVC
	// getppid(): the parent may have ended before
	MOVD	$173, R8
	SVC
	CMP	R12, R0
	BNE	end
	// execve(path, argv, envp)
	MOVD	R9, R0
	MOVD	R10, R1
	MOVD	R11, R2
	MOVD	$221, R8
	SVC
	MOVD	R0, (R13)
end:
	// exit_group(127)
	MOVD	$127, R0
	MOVD	$94, R8
	SVC
	B	end
parent:
	MOVD	R0, ret+40(FP)
	RET
