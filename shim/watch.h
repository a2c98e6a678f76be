/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names a long wait inside NCCL. Splitting and registering have no time-out (bootstrap sockets, 2.27 to 2.30), and
 * PyTorch's watchdog cannot see them; so while one is under way a thread of ours waits beside it and says on
 * stderr, every warn_s seconds, who waits for what.
 *
 * Owns that thread, which exists only between begin and end. Calls neither CUDA nor NCCL.
 */
#ifndef SYMMSHIM_WATCH_H
#define SYMMSHIM_WATCH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct watch {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t ended;
  bool running, done;
  uint32_t warn_s;
  char text[160];
};

/* warn_s 0: nothing is watched. `format` says what is waited for: "rank 1 of 2, communicator 12ab: registering ...". */
void watch_begin(struct watch *watch, uint32_t warn_s, const char *format, ...) __attribute__((format(printf, 3, 4)));
void watch_end(struct watch *watch);

#endif
