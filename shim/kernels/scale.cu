/* SPDX-License-Identifier: Apache-2.0 */
/*
 * to[i] = round(from[i] * factor): the second half of an average whose first half was a sum (then to == from), or the
 * way of a contribution into a slot. `to` and `from` are the same or do not overlap. Any alignment of the element type
 * is right; where both are alike to 16 bytes the middle runs in vectors of that size. Launched in one dimension, with
 * any number of blocks.
 */
#include "device.h"

enum { VECTOR = 16, IN_FLIGHT = 4 /* vectors that a thread has under way, so that memory is kept busy */ };

/* By integer arithmetic (to nearest, ties to even; a NaN stays one), for devices without bf16 instructions. */
DEVICE u32 bf16_of(float value)
{
  u32 bits = bits_of(value);

  if ((bits & 0x7fffffffU) > 0x7f800000U)
    return (bits >> 16) | 0x40U;
  return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
}

DEVICE u32 scale_bf16(u32 element, float factor)
{
  return bf16_of(float_of(element << 16) * factor);
}

DEVICE u32 scale_fp16(u32 element, float factor)
{
  return fp16_of(float_of_fp16(element) * factor);
}

DEVICE u32 scale_fp32(u32 element, float factor)
{
  return bits_of(float_of(element) * factor);
}

DEVICE u32 scale_bf16_word(u32 pair, float factor)
{
  return scale_bf16(pair & 0xffffU, factor) | scale_bf16(pair >> 16, factor) << 16;
}

DEVICE u32 scale_fp16_word(u32 pair, float factor)
{
  return scale_fp16(pair & 0xffffU, factor) | scale_fp16(pair >> 16, factor) << 16;
}

DEVICE u32 scale_fp32_word(u32 element, float factor)
{
  return scale_fp32(element, factor);
}

/* Elements before the first boundary of a vector, at most `count`; all of them where the two never meet one. */
DEVICE u64 unaligned_head(const void *to, const void *from, u64 size, u64 count)
{
  u64 head = ((VECTOR - ((u64)to & (VECTOR - 1))) & (VECTOR - 1)) / size;

  return ((u64)to ^ (u64)from) & (VECTOR - 1) || head > count ? count : head;
}

/* Head and tail are at most a vector long, but where there are no vectors. */
#define SCALE(type, element)                                                                                           \
  DEVICE u32x4 scale_##type##_vector(u32x4 v, float factor)                                                            \
  {                                                                                                                    \
    UNROLL for (int lane = 0; lane < 4; lane++) v[lane] = scale_##type##_word(v[lane], factor);                        \
    return v;                                                                                                          \
  }                                                                                                                    \
  KERNEL symmshim_scale_##type(void *to, const void *from, u64 count, float factor)                                    \
  {                                                                                                                    \
    enum { PER_VECTOR = VECTOR / sizeof(element) };                                                                    \
    u64 head = unaligned_head(to, from, sizeof(element), count), step = thread_count(), i = thread_index();            \
    u64 vectors = (count - head) / PER_VECTOR, tail = head + vectors * PER_VECTOR;                                     \
    element *out = (element *)to;                                                                                      \
    const element *in = (const element *)from;                                                                         \
    u32x4 *vector_out = (u32x4 *)(out + head);                                                                         \
    const u32x4 *vector_in = (const u32x4 *)(in + head);                                                               \
                                                                                                                       \
    for (; i + (IN_FLIGHT - 1) * step < vectors; i += IN_FLIGHT * step) {                                              \
      u32x4 v[IN_FLIGHT];                                                                                              \
      UNROLL for (int at = 0; at < IN_FLIGHT; at++) v[at] = vector_in[i + at * step];                                  \
      UNROLL for (int at = 0; at < IN_FLIGHT; at++) vector_out[i + at * step] = scale_##type##_vector(v[at], factor);  \
    }                                                                                                                  \
    for (; i < vectors; i += step)                                                                                     \
      vector_out[i] = scale_##type##_vector(vector_in[i], factor);                                                     \
    for (i = thread_index(); i < head; i += step)                                                                      \
      out[i] = (element)scale_##type(in[i], factor);                                                                   \
    for (i = tail + thread_index(); i < count; i += step)                                                              \
      out[i] = (element)scale_##type(in[i], factor);                                                                   \
  }

SCALE(bf16, u16)
SCALE(fp16, u16)
SCALE(fp32, u32)
