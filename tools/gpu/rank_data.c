/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpu/rank.h"

enum { CHECKED_BYTES = 8 << 20 };

/* The difference of a NaN, which is also what no call has written: above all others, and it stays the largest. */
#define NO_NUMBER 1e30

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

static float value_at(const char *host, uint64_t at, enum policy_dtype dtype)
{
  uint32_t bits = 0;
  float value;

  memcpy(&bits, host + at, policy_dtype_size(dtype));
  if (dtype == POLICY_DTYPE_bf16)
    bits <<= 16;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

double difference(const struct gpu_case *what, const char *stock, const char *other)
{
  uint64_t bytes = recv_bytes(what), checked = bytes < CHECKED_BYTES ? bytes : CHECKED_BYTES;
  uint64_t size = policy_dtype_size(what->dtype);
  char *a = malloc(checked), *b = malloc(checked);
  double most = 0, largest = 1e-30;

  if (!a || !b)
    give_up("rank %d: out of memory", rank);
  for (int end = 0; end < (checked < bytes ? 2 : 1); end++) {
    uint64_t from = end ? bytes - checked : 0;
    CUDA(cudaMemcpy(a, stock + from, checked, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(b, other + from, checked, cudaMemcpyDeviceToHost));
    for (uint64_t at = 0; at + size <= checked; at += size) {
      double wanted = value_at(a, at, what->dtype), off = fabs(wanted - (double)value_at(b, at, what->dtype));
      largest = fmax(largest, fabs(wanted));
      most = off <= most ? most : isnan(off) ? NO_NUMBER : off;
    }
  }
  free(a);
  free(b);
  return most < NO_NUMBER ? most / largest : NO_NUMBER;
}
