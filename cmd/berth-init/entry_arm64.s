#include "textflag.h"

// entry is where the kernel starts the program (linker flag -E).
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	SUB	$48, RSP
	// begin(RSP), as Go calls the value of a function; it doesn't return
	MOVD	·begin(SB), R26
	ADD	$48, RSP, R0
	MOVD	(R26), R1
	CALL	(R1)
	BRK

// func raw(number, a, b, c, d uintptr) int
TEXT ·raw(SB), NOSPLIT, $0-48
	MOVD	number+0(FP), R8
	MOVD	a+8(FP), R0
	MOVD	b+16(FP), R1
	MOVD	c+24(FP), R2
	MOVD	d+32(FP), R3
	MOVD	$0, R4
	SVC
	MOVD	R0, ret+40(FP)
	RET
