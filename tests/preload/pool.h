/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A caching allocator as frameworks have one: few large segments from cudaMalloc, tensors at offsets in them. Owns
 * the segments. What is allocated after a mark is given up by going back to it.
 */
#ifndef SYMMSHIM_PRELOAD_POOL_H
#define SYMMSHIM_PRELOAD_POOL_H

#include <stddef.h>

enum { POOL_SEGMENTS = 64, POOL_LOOSE = 256 };

struct pool {
  size_t segment_bytes;
  int count;
  char *segments[POOL_SEGMENTS];
  size_t used[POOL_SEGMENTS];
  int loose_count;
  void *loose[POOL_LOOSE]; /* allocations of their own */
};

struct pool_mark {
  size_t used[POOL_SEGMENTS];
};

/* A tensor's memory. The first segment with room is taken, or a new one made. */
void *pool_alloc(struct pool *pool, size_t bytes);

/* Likewise, in one segment; all segments up to it are made. */
void *pool_alloc_in(struct pool *pool, int segment, size_t bytes);

/* An allocation of its own, until pool_back(). */
void *pool_alloc_loose(struct pool *pool, size_t bytes);

struct pool_mark pool_mark(const struct pool *pool);
void pool_back(struct pool *pool, const struct pool_mark *mark);

/* Gives every segment back to the device. */
void pool_release(struct pool *pool);

#endif
