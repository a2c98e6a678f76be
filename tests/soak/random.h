/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that look random and that a seed determines. */
#ifndef SYMMSHIM_SOAK_RANDOM_H
#define SYMMSHIM_SOAK_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct random {
  uint64_t state;
};

static inline uint64_t random_mix(uint64_t x)
{
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

static inline uint64_t random_next(struct random *random)
{
  random->state += 0x9e3779b97f4a7c15ULL;
  return random_mix(random->state);
}

/* 0 to limit - 1. */
static inline int random_below(struct random *random, int limit)
{
  return (int)(random_next(random) % (uint64_t)limit);
}

static inline bool random_chance(struct random *random, int percent)
{
  return random_below(random, 100) < percent;
}

/* A place in the list of weights, each as often as its weight says. */
static inline int random_weighted(struct random *random, const int *weights, int count)
{
  int sum = 0, at = 0, drawn;

  for (int i = 0; i < count; i++)
    sum += weights[i];
  for (drawn = random_below(random, sum); drawn >= weights[at]; at++)
    drawn -= weights[at];
  return at;
}

#endif
