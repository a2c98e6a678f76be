/* SPDX-License-Identifier: Apache-2.0 */
/* The PTX text made from scale.cu, NUL-terminated as cuModuleLoadData wants it. */
    .section .rodata
    .global symmshim_scale_ptx
    .hidden symmshim_scale_ptx
    .type symmshim_scale_ptx, %object
symmshim_scale_ptx:
    .incbin SCALE_PTX
    .byte 0
    .size symmshim_scale_ptx, . - symmshim_scale_ptx
    .section .note.GNU-stack,"",%progbits
