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

DEVICE u64 thread_index(void)
{
  return (u64)__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x();
}

DEVICE u64 thread_count(void)
{
  return (u64)__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x();
}

#else

#define KERNEL void
#define DEVICE static inline

extern __thread unsigned sim_thread_index, sim_thread_count;

DEVICE u64 thread_index(void)
{
  return sim_thread_index;
}

DEVICE u64 thread_count(void)
{
  return sim_thread_count;
}

#endif
#endif
