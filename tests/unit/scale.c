/* SPDX-License-Identifier: Apache-2.0 */
/* The device code, compiled for the host: every alignment and count, rounding, and nothing touched beside the data. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "shim/kernels/scale.cu"

__thread unsigned sim_thread_index, sim_thread_count;

enum { ROOM = 96, MARK = 0x5a };

/* Runs a kernel with so many threads, one after another, as the simulated GPU does. */
static void launch_copy(void (*kernel)(void *, const void *, u64, float), unsigned threads, void *to, const void *from,
                        u64 count, float factor)
{
  sim_thread_count = threads;
  for (sim_thread_index = 0; sim_thread_index < threads; sim_thread_index++)
    kernel(to, from, count, factor);
}

static void launch(void (*kernel)(void *, const void *, u64, float), unsigned threads, void *data, u64 count,
                   float factor)
{
  launch_copy(kernel, threads, data, data, count, factor);
}

static float value_at(size_t i)
{
  return (float)i * 1.37F - 40.0F;
}

/* To nearest, ties to even, by another way than the kernel's. */
static uint16_t rounded_bf16(double exact)
{
  uint16_t best = 0;
  double distance = INFINITY;
  uint32_t start = bits_of((float)exact) >> 16;

  for (uint32_t candidate = start - 1; candidate != start + 2; candidate++) {
    double off = fabs((double)float_of(candidate << 16) - exact);
    if (off < distance || (off == distance && candidate % 2 == 0)) {
      best = (uint16_t)candidate;
      distance = off;
    }
  }
  return best;
}

static void bf16_every_alignment_and_count(void **state)
{
  _Alignas(16) unsigned char memory[2 * ROOM];

  (void)state;
  for (size_t offset = 0; offset < 16; offset += 2)
    for (size_t count = 0; count <= 40; count++) {
      uint16_t *data = (uint16_t *)(memory + 16 + offset);
      memset(memory, MARK, sizeof(memory));
      for (size_t i = 0; i < count; i++)
        data[i] = (uint16_t)bf16_of(value_at(i));
      launch(symmshim_scale_bf16, 5, data, count, 1.0F / 3);
      for (size_t i = 0; i < count; i++)
        assert_int_equal(data[i], rounded_bf16((double)(float_of(bf16_of(value_at(i)) << 16) * (1.0F / 3))));
      for (size_t i = 0; i < sizeof(memory); i++)
        if (i < 16 + offset || i >= 16 + offset + 2 * count)
          assert_int_equal(memory[i], MARK);
    }
}

static void fp32_every_alignment_and_count(void **state)
{
  _Alignas(16) unsigned char memory[2 * ROOM];

  (void)state;
  for (size_t offset = 0; offset < 16; offset += 4)
    for (size_t count = 0; count <= 24; count++) {
      float *data = (float *)(memory + 16 + offset);
      memset(memory, MARK, sizeof(memory));
      for (size_t i = 0; i < count; i++)
        data[i] = value_at(i);
      launch(symmshim_scale_fp32, 3, data, count, 1.0F / 7);
      for (size_t i = 0; i < count; i++)
        assert_true(data[i] == value_at(i) * (1.0F / 7));
      for (size_t i = 0; i < sizeof(memory); i++)
        if (i < 16 + offset || i >= 16 + offset + 4 * count)
          assert_int_equal(memory[i], MARK);
    }
}

static void bf16_rounds_to_nearest_even_and_keeps_the_specials(void **state)
{
  static const struct {
    uint32_t before;
    float factor;
    uint32_t after;
  } cases[] = {
      {0x3f80, 0.5F, 0x3f00},                                /* 1 */
      {0x3f81, 1.00390625F, 0x3f82},                         /* 1.0078125 * (1 + 1/256) lies above the middle */
      {0x3f80, 1.00390625F, 0x3f80},                         /* exactly the middle: to the even one, down */
      {0x3f80, 1.01171875F, 0x3f82},                         /* exactly the middle: to the even one, up */
      {0x7f80, 0.5F, 0x7f80},                                /* infinity */
      {0xff80, 0.5F, 0xff80},        {0x7fc0, 0.5F, 0x7fc0}, /* NaN */
      {0x7f81, 1.0F, 0x7fc1},                                /* a signalling NaN does not become infinity */
      {0x7f7f, 2.0F, 0x7f80},                                /* overflow */
      {0x0001, 0.5F, 0x0000},                                /* half of the least subnormal: a tie, to zero */
      {0x0003, 0.5F, 0x0002},        {0x8000, 0.5F, 0x8000}, /* -0 */
  };

  (void)state;
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    uint16_t data = (uint16_t)cases[i].before;
    launch(symmshim_scale_bf16, 1, &data, 1, cases[i].factor);
    assert_int_equal(data, cases[i].after);
  }
}

static void any_number_of_threads_does_each_element_once(void **state)
{
  static const unsigned threads[] = {1, 2, 31, 1000};
  _Alignas(16) uint16_t data[777];

  (void)state;
  for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
    for (size_t i = 0; i < 777; i++)
      data[i] = 0x4080; /* 4 */
    launch(symmshim_scale_bf16, threads[t], data, 777, 0.5F);
    for (size_t i = 0; i < 777; i++)
      assert_int_equal(data[i], 0x4000); /* 2: scaled once, not twice */
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bf16_every_alignment_and_count),
      cmocka_unit_test(fp32_every_alignment_and_count),
      cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_the_specials),
      cmocka_unit_test(any_number_of_threads_does_each_element_once),
  };

  return cmocka_run_group_tests_name("scale", tests, NULL, NULL);
}
