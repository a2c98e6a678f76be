/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/watch.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "shim/log.h"

static void *wait_and_tell(void *data)
{
  struct watch *watch = data;
  struct timespec until;
  uint32_t waited = 0;

  clock_gettime(CLOCK_MONOTONIC, &until);
  pthread_mutex_lock(&watch->lock);
  while (!watch->done) {
    until.tv_sec += watch->warn_s;
    while (!watch->done && pthread_cond_timedwait(&watch->ended, &watch->lock, &until) == 0) {
    }
    if (watch->done)
      break;
    waited += watch->warn_s;
    log_warn("%s has taken %u s so far", watch->text, waited);
  }
  pthread_mutex_unlock(&watch->lock);
  return NULL;
}

void watch_begin(struct watch *watch, uint32_t warn_s, const char *format, ...)
{
  pthread_condattr_t monotonic;
  sigset_t all, before;
  va_list args;

  *watch = (struct watch){.warn_s = warn_s};
  if (warn_s == 0)
    return;
  va_start(args, format);
  vsnprintf(watch->text, sizeof(watch->text), format, args);
  va_end(args);
  pthread_mutex_init(&watch->lock, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&watch->ended, &monotonic);
  pthread_condattr_destroy(&monotonic);
  /* The job's signals are for the job's threads. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  watch->running = pthread_create(&watch->thread, NULL, wait_and_tell, watch) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void watch_end(struct watch *watch)
{
  if (watch->warn_s == 0)
    return;
  pthread_mutex_lock(&watch->lock);
  watch->done = true;
  pthread_cond_signal(&watch->ended);
  pthread_mutex_unlock(&watch->lock);
  if (watch->running)
    pthread_join(watch->thread, NULL);
  pthread_cond_destroy(&watch->ended);
  pthread_mutex_destroy(&watch->lock);
}
