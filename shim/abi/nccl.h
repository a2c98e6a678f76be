/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NCCL's ABI that symmshim uses, declared in our own words, so that a build needs no NCCL.
 *
 * With SYMMSHIM_REAL_HEADERS the real nccl.h takes the place of these declarations, and the lists and
 * assertions at the end hold against it (shim/abi/check.c is compiled so where nccl.h is installed).
 * Facts are those of NCCL 2.28.9 unless a comment names another version.
 */
#ifndef SYMMSHIM_ABI_NCCL_H
#define SYMMSHIM_ABI_NCCL_H

#include <limits.h>
#include <stddef.h>

#include "shim/abi/cuda.h"

#define ABI_NCCL_CONSTANTS(X)                                                                                          \
  X(ncclSuccess, 0)                                                                                                    \
  X(ncclUnhandledCudaError, 1)                                                                                         \
  X(ncclSystemError, 2)                                                                                                \
  X(ncclInternalError, 3)                                                                                              \
  X(ncclInvalidArgument, 4)                                                                                            \
  X(ncclInvalidUsage, 5)                                                                                               \
  X(ncclRemoteError, 6)                                                                                                \
  X(ncclInProgress, 7)                                                                                                 \
  X(ncclSum, 0)                                                                                                        \
  X(ncclProd, 1)                                                                                                       \
  X(ncclMax, 2)                                                                                                        \
  X(ncclMin, 3)                                                                                                        \
  X(ncclAvg, 4)                                                                                                        \
  X(ncclNumOps, 5)                                                                                                     \
  X(ncclInt8, 0)                                                                                                       \
  X(ncclUint8, 1)                                                                                                      \
  X(ncclInt32, 2)                                                                                                      \
  X(ncclUint32, 3)                                                                                                     \
  X(ncclInt64, 4)                                                                                                      \
  X(ncclUint64, 5)                                                                                                     \
  X(ncclFloat16, 6)                                                                                                    \
  X(ncclFloat32, 7)                                                                                                    \
  X(ncclFloat64, 8)                                                                                                    \
  X(ncclBfloat16, 9)                                                                                                   \
  X(ncclFloat8e4m3, 10)                                                                                                \
  X(ncclFloat8e5m2, 11)                                                                                                \
  X(ncclNumTypes, 12)                                                                                                  \
  X(ncclScalarDevice, 0)                                                                                               \
  X(ncclScalarHostImmediate, 1)

#ifdef SYMMSHIM_REAL_HEADERS
#include <nccl.h>
#define ABI_NCCL_CHECK(name, value) _Static_assert((int)(name) == (value), #name " differs from NCCL's");
ABI_NCCL_CONSTANTS(ABI_NCCL_CHECK)
#undef ABI_NCCL_CHECK
#else

#define ABI_NCCL_DEFINE(name, value) name = (value),
enum abi_nccl_constants { ABI_NCCL_CONSTANTS(ABI_NCCL_DEFINE) };
#undef ABI_NCCL_DEFINE

/* NCCL's enumerations cross the ABI as unsigned int (no negative member, gcc and clang). */
typedef unsigned int ncclResult_t;
typedef unsigned int ncclDataType_t;
typedef unsigned int ncclRedOp_t;
typedef unsigned int ncclScalarResidence_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclSimInfo_v22200 ncclSimInfo_t; /* never looked into */
typedef struct ncclWindow_vidmem *ncclWindow_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_CTA_POLICY_ZERO 0x02
#define NCCL_SHRINK_ABORT 0x01

/*
 * The configuration as of 2.27.0. NCCL copies `size` bytes and gives its own defaults to whatever a newer
 * version added after `version` (parseCommConfig, 2.27 to 2.30.7), so this shape is taken by all of them.
 */
typedef struct abi_nccl_config {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char *netName;
  int splitShare;
  int trafficClass;
  const char *commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
} ncclConfig_t;

#endif

/* What came with 2.29.2. */
#if !defined(SYMMSHIM_REAL_HEADERS) || NCCL_VERSION_CODE < 22902
typedef struct abi_nccl_wait_signal_desc ncclWaitSignalDesc_t; /* never looked into */
#endif

/*
 * What came with 2.31.2, and as of 2.32.3: the settings of one call. NCCL copies `size` bytes, and takes nothing
 * shorter than the first version of it (collconfig.cc, 2.31). All ranks have to give the same.
 */
#if !defined(SYMMSHIM_REAL_HEADERS) || NCCL_VERSION_CODE < 23100
typedef struct abi_nccl_config_ext ncclConfigExt_t; /* never looked into */
typedef struct abi_nccl_coll_config {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t *ext;
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char *algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  uint64_t userProfilerTag;      /* handed to profiler plugins, and of no other effect */
  CUevent launchCompletionEvent; /* from 2.32 */
} ncclCollConfig_t;
#endif

#define ABI_NCCL_CONFIG_MAGIC 0xcafebeefU
#define ABI_NCCL_CONFIG_VERSION 22700U

/* The newest version that tests/versions was run on. */
#define ABI_NCCL_NEWEST 23203

#define ABI_NCCL_FIELDS(X)                                                                                             \
  X(ncclConfig_t, size, 0)                                                                                             \
  X(ncclConfig_t, magic, 8)                                                                                            \
  X(ncclConfig_t, version, 12)                                                                                         \
  X(ncclConfig_t, blocking, 16)                                                                                        \
  X(ncclConfig_t, cgaClusterSize, 20)                                                                                  \
  X(ncclConfig_t, minCTAs, 24)                                                                                         \
  X(ncclConfig_t, maxCTAs, 28)                                                                                         \
  X(ncclConfig_t, netName, 32)                                                                                         \
  X(ncclConfig_t, splitShare, 40)                                                                                      \
  X(ncclConfig_t, trafficClass, 44)                                                                                    \
  X(ncclConfig_t, commName, 48)                                                                                        \
  X(ncclConfig_t, collnetEnable, 56)                                                                                   \
  X(ncclConfig_t, CTAPolicy, 60)                                                                                       \
  X(ncclConfig_t, shrinkShare, 64)                                                                                     \
  X(ncclConfig_t, nvlsCTAs, 68)                                                                                        \
  X(ncclCollConfig_t, size, 0)                                                                                         \
  X(ncclCollConfig_t, magic, 8)                                                                                        \
  X(ncclCollConfig_t, version, 12)                                                                                     \
  X(ncclCollConfig_t, ext, 16)                                                                                         \
  X(ncclCollConfig_t, minCTAs, 24)                                                                                     \
  X(ncclCollConfig_t, maxCTAs, 28)                                                                                     \
  X(ncclCollConfig_t, nvlsCTAs, 32)                                                                                    \
  X(ncclCollConfig_t, cgaClusterSize, 36)                                                                              \
  X(ncclCollConfig_t, algSelection, 40)                                                                                \
  X(ncclCollConfig_t, forceAlgSelection, 48)                                                                           \
  X(ncclCollConfig_t, CTAPolicy, 52)                                                                                   \
  X(ncclCollConfig_t, userProfilerTag, 56)

/* Headers of 2.31 do not have it. */
#define ABI_NCCL_FIELDS_LATER(X) X(ncclCollConfig_t, launchCompletionEvent, 64)

#define ABI_NCCL_FIELD_CHECK(type, field, at)                                                                          \
  _Static_assert(offsetof(type, field) == (at), #type "." #field " is at another offset");
ABI_NCCL_FIELDS(ABI_NCCL_FIELD_CHECK)
#if !defined(SYMMSHIM_REAL_HEADERS) || NCCL_VERSION_CODE < 23100 || NCCL_VERSION_CODE >= 23200
ABI_NCCL_FIELDS_LATER(ABI_NCCL_FIELD_CHECK)
#endif
#undef ABI_NCCL_FIELD_CHECK
_Static_assert(sizeof(ncclUniqueId) == 128, "ncclUniqueId has another size");
_Static_assert(sizeof(ncclResult_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclRedOp_t) == 4,
               "an enumeration of NCCL's has another size");

#endif
