/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpu/rank.h"

enum { CHECKED_BYTES = 8 << 20 };

uint64_t send_bytes(const struct gpu_case *what)
{
  return what->op == POLICY_OP_all_gather ? what->bytes / (uint64_t)region->nranks : what->bytes;
}

uint64_t recv_bytes(const struct gpu_case *what)
{
  return what->op == POLICY_OP_reduce_scatter ? what->bytes / (uint64_t)region->nranks : what->bytes;
}

/* Equal bits on every run, different ones on every rank: finite, between -1 and 1 for floats. */
static uint32_t next_random(uint64_t *state)
{
  *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
  return (uint32_t)(*state >> 33);
}

void fill(void *device, uint64_t bytes, enum policy_dtype dtype)
{
  uint64_t state = (uint64_t)rank * 977 + 1, size = policy_dtype_size(dtype);
  uint64_t piece = bytes < CHECKED_BYTES ? bytes : CHECKED_BYTES; /* over and over */
  char *host = malloc(piece);

  if (!host)
    give_up("rank %d: out of memory", rank);
  for (uint64_t at = 0; at + size <= piece; at += size) {
    float value = (float)(next_random(&state) & 0xffff) / 65536.0F - 0.5F;
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (dtype == POLICY_DTYPE_bf16)
      bits >>= 16;
    memcpy(host + at, &bits, size);
  }
  for (uint64_t at = 0; at < bytes; at += piece)
    CUDA(cudaMemcpy((char *)device + at, host, bytes - at < piece ? bytes - at : piece, cudaMemcpyHostToDevice));
  free(host);
}

__attribute__((always_inline)) static inline float value_at(const char *host, uint64_t at, enum policy_dtype dtype,
                                                            uint64_t size)
{
  uint32_t bits = 0;
  float value;

  memcpy(&bits, host + at, size);
  if (dtype == POLICY_DTYPE_bf16)
    bits <<= 16;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

struct extent {
  double most, largest; /* difference, element */
};

/* Inlined for a type at a time, since it goes over many elements. */
__attribute__((always_inline)) static inline struct extent
compare(const char *a, const char *b, uint64_t bytes, enum policy_dtype dtype, uint64_t size, struct extent extent)
{
  for (uint64_t at = 0; at + size <= bytes; at += size) {
    double wanted = value_at(a, at, dtype, size), off = fabs(wanted - (double)value_at(b, at, dtype, size));
    extent.largest = fabs(wanted) > extent.largest ? fabs(wanted) : extent.largest;
    extent.most = off <= extent.most ? extent.most : isnan(off) ? GPU_NO_NUMBER : off;
  }
  return extent;
}

double difference(const struct gpu_case *what, const char *stock, const char *other)
{
  uint64_t bytes = recv_bytes(what), checked = bytes < CHECKED_BYTES ? bytes : CHECKED_BYTES;
  char *a = malloc(checked), *b = malloc(checked);
  struct extent extent = {0, 1e-30};

  if (!a || !b)
    give_up("rank %d: out of memory", rank);
  for (int end = 0; end < (checked < bytes ? 2 : 1); end++) {
    uint64_t from = end ? bytes - checked : 0;
    CUDA(cudaMemcpy(a, stock + from, checked, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(b, other + from, checked, cudaMemcpyDeviceToHost));
    extent = what->dtype == POLICY_DTYPE_bf16 ? compare(a, b, checked, POLICY_DTYPE_bf16, 2, extent)
                                              : compare(a, b, checked, POLICY_DTYPE_fp32, 4, extent);
  }
  free(a);
  free(b);
  return extent.most < GPU_NO_NUMBER ? extent.most / extent.largest : GPU_NO_NUMBER;
}
