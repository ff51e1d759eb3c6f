#include "textflag.h"

// entry is where the kernel starts the program (linker flag -E): it has begin look
// whether Go's runtime is needed at all. Then it looks at what the process was given
// before that runtime changes it, and goes on to the runtime's own entry, with the
// stack as it was but for what alone has made of its words.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	SUB	$48, RSP
	// begin(RSP), as Go calls the value of a function.
	MOVD	·begin(SB), R26
	ADD	$48, RSP, R0
	MOVD	(R26), R1
	CALL	(R1)
	// R22: alone(RSP)
	MOVD	·alone(SB), R26
	ADD	$48, RSP, R0
	MOVD	(R26), R1
	CALL	(R1)
	MOVD	R0, R22
	ADD	$48, RSP
	// rt_sigprocmask(SIG_BLOCK, NULL, &blocked, 8)
	MOVD	$0, R0
	MOVD	$0, R1
	MOVD	$·blocked(SB), R2
	MOVD	$8, R3
	MOVD	$135, R8
	SVC
	// R20: signal number, R21: set of ignored signals
	MOVD	$1, R20
	MOVD	$0, R21
signal:
	// rt_sigaction(R20, NULL, &action, 8)
	MOVD	R20, R0
	MOVD	$0, R1
	MOVD	$·action(SB), R2
	MOVD	$8, R3
	MOVD	$134, R8
	SVC
	CBNZ	R0, next
	MOVD	·action(SB), R4
	CMP	$1, R4	// SIG_IGN
	BNE	next
	SUB	$1, R20, R5
	MOVD	$1, R6
	LSL	R5, R6, R6
	ORR	R6, R21, R21
next:
	ADD	$1, R20, R20
	CMP	$64, R20
	BLE	signal
	MOVD	R21, ·ignored(SB)
	// R20: descriptor, R21: set of closed descriptors
	MOVD	$0, R20
	MOVD	$0, R21
descriptor:
	// fcntl(R20, F_GETFD)
	MOVD	R20, R0
	MOVD	$1, R1
	MOVD	$25, R8
	SVC
	CMP	$0, R0
	BGE	open
	MOVD	$1, R6
	LSL	R20, R6, R6
	ORR	R6, R21, R21
open:
	ADD	$1, R20, R20
	CMP	$3, R20
	BLT	descriptor
	MOVD	R21, ·closed(SB)
	// prctl(PR_GET_TIMERSLACK); prctl(PR_SET_TIMERSLACK, 1 ms)
	MOVD	$30, R0
	MOVD	$167, R8
	SVC
	CMP	$0, R0
	BLE	slack
	MOVD	R0, ·slack(SB)
	MOVD	$29, R0
	MOVD	$1000000, R1
	MOVD	$167, R8
	SVC
slack:
	MOVD	$1, R6
	MOVD	R6, ·known(SB)
	MOVD	0(R22), R0
	ADD	$8, R22, R1
	B	runtime·rt0_go(SB)
