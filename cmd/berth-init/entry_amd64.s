#include "textflag.h"

// entry is where the kernel starts the program (linker flag -E).
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	SUBQ	$32, SP
	// arch_prctl(ARCH_SET_FS): functions in Go look there for g, which none of these uses
	MOVQ	$158, AX
	MOVQ	$0x1002, DI
	LEAQ	·thread+64(SB), SI
	SYSCALL
	// begin(SP), as Go calls the value of a function; it doesn't return
	MOVQ	·begin(SB), DX
	LEAQ	32(SP), AX
	XORPS	X15, X15
	MOVQ	(DX), CX
	CALL	CX
	INT	$3

// func raw(number, a, b, c, d uintptr) int
TEXT ·raw(SB), NOSPLIT, $0-48
	MOVQ	number+0(FP), AX
	MOVQ	a+8(FP), DI
	MOVQ	b+16(FP), SI
	MOVQ	c+24(FP), DX
	MOVQ	d+32(FP), R10
	MOVQ	$0, R8
	SYSCALL
	MOVQ	AX, ret+40(FP)
	RET
