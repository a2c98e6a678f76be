/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share. A target is one NAME_fuzzer.c; libFuzzer drives it (-Dfuzzing=true), or replay.c with
 * the files of corpus/NAME, as a normal test.
 */
#ifndef SYMMSHIM_TESTS_FUZZ_FUZZ_H
#define SYMMSHIM_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An assertion that no build leaves out. */
#define MUST(condition)                                                                                                \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                          \
      abort();                                                                                                         \
    }                                                                                                                  \
  } while (0)

#endif
