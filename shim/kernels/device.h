/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few words that device code is written in, so that the same source is compiled to PTX by clang (no CUDA
 * toolkit: -nocudainc -nocudalib) and to host functions for the simulated GPU, which runs the threads of a
 * grid one after another and tells each its place through two thread-local variables.
 */
#ifndef SYMMSHIM_DEVICE_H
#define SYMMSHIM_DEVICE_H

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 u32x4 __attribute__((vector_size(16)));

#ifdef __CUDA__
#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static inline __attribute__((device))
#define UNROLL _Pragma("unroll")
#else
#define KERNEL void
#define DEVICE static inline
#define UNROLL
#endif

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

#ifdef __CUDA__

DEVICE u64 thread_index(void)
{
  return (u64)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
}

DEVICE u64 thread_count(void)
{
  return (u64)__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x();
}

DEVICE float float_of_fp16(u32 bits)
{
  float value;

  __asm__("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
  return value;
}

DEVICE u32 fp16_of(float value)
{
  u16 bits;

  __asm__("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

#else

extern __thread unsigned sim_thread_index, sim_thread_count;

DEVICE u64 thread_index(void)
{
  return sim_thread_index;
}

DEVICE u64 thread_count(void)
{
  return sim_thread_count;
}

/* As the instructions of the device do it: gcc 12 and clang 14 know no half type that both can use. */
DEVICE float float_of_fp16(u32 bits)
{
  u32 sign = (bits & 0x8000U) << 16, exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  float value = float_of((exponent + 112) << 23 | fraction << 13);

  if (exponent == 0) /* subnormal: a multiple of 2^-24 */
    value = (float)fraction * 0x1p-24F;
  else if (exponent == 0x1f)
    value = float_of(0x7f800000U | fraction << 13);
  return float_of(bits_of(value) | sign);
}

DEVICE u32 fp16_of(float value)
{
  u32 bits = bits_of(value), sign = bits >> 16 & 0x8000U, magnitude = bits & 0x7fffffffU;

  if (magnitude > 0x7f800000U)
    return 0x7fffU;
  if (magnitude >= 0x477ff000U) /* 65520 and above round to infinity */
    return sign | 0x7c00U;
  if (magnitude < 0x38800000U) /* subnormal: adding 0.5 leaves the fraction at the low end, rounded to nearest even */
    return sign | (bits_of(float_of(magnitude) + 0.5F) - 0x3f000000U);
  return sign | (magnitude - 0x38000000U + 0xfffU + (magnitude >> 13 & 1)) >> 13;
}

#endif
#endif
