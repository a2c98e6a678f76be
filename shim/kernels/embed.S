/* SPDX-License-Identifier: Apache-2.0 */
/* The PTX text made from scale.cu, NUL-terminated as cuModuleLoadData wants it. */
    .section .rodata
    .global symmshim_scale_ptx
    .hidden symmshim_scale_ptx
    .type symmshim_scale_ptx, %object
symmshim_scale_ptx:
    .incbin "scale.ptx"
    .byte 0
    .size symmshim_scale_ptx, . - symmshim_scale_ptx
    .section .note.GNU-stack,"",%progbits

/* The compiler tells ninja of what is included, not of .incbin: without this line an old kernel stays in the object. */
    .if 0
#include "scale.ptx"
    .endif
