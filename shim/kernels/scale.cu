/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data[i] = round(data[i] * factor), in place: the second half of an average whose first half was a sum.
 * Any alignment of the element type is right; the middle runs in 16-byte vectors. Launched in one dimension,
 * with any number of blocks.
 */
#include "device.h"

DEVICE float float_of(u32 bits)
{
  union {
    u32 bits;
    float value;
  } cast;
  cast.bits = bits;
  return cast.value;
}

DEVICE u32 bits_of(float value)
{
  union {
    u32 bits;
    float value;
  } cast;
  cast.value = value;
  return cast.bits;
}

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

DEVICE u32 scale_bf16_pair(u32 pair, float factor)
{
  return scale_bf16(pair & 0xffffU, factor) | scale_bf16(pair >> 16, factor) << 16;
}

DEVICE u32 scale_fp32(u32 element, float factor)
{
  return bits_of(float_of(element) * factor);
}

/* Elements before the first 16-byte boundary, at most `count`. */
DEVICE u64 unaligned_head(const void *data, u64 size, u64 count)
{
  u64 head = ((16 - ((u64)data & 15)) & 15) / size;

  return head < count ? head : count;
}

KERNEL symmshim_scale_bf16(void *data, u64 count, float factor)
{
  u16 *element = (u16 *)data;
  u64 head = unaligned_head(data, sizeof(u16), count);
  u64 vectors = (count - head) / 8;
  u32x4 *vector = (u32x4 *)(element + head);

  for (u64 i = thread_index(); i < vectors; i += thread_count()) {
    u32x4 v = vector[i];
    for (int lane = 0; lane < 4; lane++)
      v[lane] = scale_bf16_pair(v[lane], factor);
    vector[i] = v;
  }
  /* at most 7 elements before and 7 after the vectors */
  for (u64 i = thread_index(); i < head; i += thread_count())
    element[i] = (u16)scale_bf16(element[i], factor);
  for (u64 i = head + vectors * 8 + thread_index(); i < count; i += thread_count())
    element[i] = (u16)scale_bf16(element[i], factor);
}

KERNEL symmshim_scale_fp32(void *data, u64 count, float factor)
{
  u32 *element = (u32 *)data;
  u64 head = unaligned_head(data, sizeof(u32), count);
  u64 vectors = (count - head) / 4;
  u32x4 *vector = (u32x4 *)(element + head);

  for (u64 i = thread_index(); i < vectors; i += thread_count()) {
    u32x4 v = vector[i];
    for (int lane = 0; lane < 4; lane++)
      v[lane] = scale_fp32(v[lane], factor);
    vector[i] = v;
  }
  for (u64 i = thread_index(); i < head; i += thread_count())
    element[i] = scale_fp32(element[i], factor);
  for (u64 i = head + vectors * 4 + thread_index(); i < count; i += thread_count())
    element[i] = scale_fp32(element[i], factor);
}
