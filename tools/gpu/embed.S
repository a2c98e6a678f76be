/* SPDX-License-Identifier: Apache-2.0 */
/* The PTX text made from busy.cu, NUL-terminated as cuModuleLoadData wants it. */
    .section .rodata
    .global symmshim_busy_ptx
    .hidden symmshim_busy_ptx
    .type symmshim_busy_ptx, %object
symmshim_busy_ptx:
    .incbin "busy.ptx"
    .byte 0
    .size symmshim_busy_ptx, . - symmshim_busy_ptx
    .section .note.GNU-stack,"",%progbits

/* The compiler tells ninja of what is included, not of .incbin: without this line an old kernel stays in the object. */
    .if 0
#include "busy.ptx"
    .endif
