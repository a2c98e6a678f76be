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

/* fp16 by its definition, without the kernel's code. */
static double fp16_value(uint32_t bits)
{
  uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  double size = exponent == 31  ? (fraction ? NAN : INFINITY)
                : exponent == 0 ? ldexp(fraction, -24)
                                : ldexp(1024 + fraction, (int)exponent - 25);

  return bits & 0x8000 ? -size : size;
}

/* The nearest of all finite ones, the even one of two; from the middle between the last and what would be next, none
 * is. By halving, as the values without a sign lie in the order of their bits. */
static uint32_t rounded_fp16(double exact)
{
  uint32_t sign = signbit(exact) ? 0x8000 : 0, low = 0, high = 0x7bff;
  double size = fabs(exact), below, above;

  if (isnan(exact))
    return 0x7fff; /* what the device's instruction gives, sign and all */
  if (size >= 65520)
    return sign | 0x7c00;
  while (low < high) { /* the last that is not above it */
    uint32_t middle = (low + high + 1) / 2;
    if (fp16_value(middle) <= size)
      low = middle;
    else
      high = middle - 1;
  }
  below = size - fp16_value(low);
  above = low == 0x7bff ? INFINITY : fp16_value(low + 1) - size;
  return sign | (above < below || (above == below && low % 2 == 1) ? low + 1 : low);
}

static void fp16_every_value(void **state)
{
  static const float factors[] = {1, 0.5F, 1.0F / 3, 0x1p-10F, 0x1p-24F, -1.0F / 7, 3, 1.0009765625F, 0, INFINITY, NAN};
  static _Alignas(16) uint16_t from[1 << 16], to[1 << 16];

  (void)state;
  for (size_t i = 0; i < 1 << 16; i++)
    from[i] = (uint16_t)i;
  for (size_t f = 0; f < sizeof(factors) / sizeof(factors[0]); f++) {
    launch_copy(symmshim_scale_fp16, 7, to, from, 1 << 16, factors[f]);
    for (size_t i = 0; i < 1 << 16; i++) {
      uint32_t wanted = rounded_fp16((double)((float)fp16_value((uint32_t)i) * factors[f]));
      if (to[i] != wanted)
        fail_msg("%04zx * %g is %04x instead of %04x", i, (double)factors[f], to[i], wanted);
    }
  }
}

static void fp16_rounds_to_nearest_even_and_keeps_the_specials(void **state)
{
  static const struct {
    uint32_t before;
    float factor;
    uint32_t after;
  } cases[] = {
      {0x3c00, 0.5F, 0x3800},           /* 1 */
      {0x3c00, 1.00048828125F, 0x3c00}, /* 1 + 2^-11, exactly the middle: to the even one, down */
      {0x3c00, 1.00146484375F, 0x3c02}, /* 1 + 3 * 2^-11: to the even one, up */
      {0x3c00, 1.00048840F, 0x3c01},    /* a little above the middle */
      {0x7c00, 0.5F, 0x7c00},           /* infinity */
      {0xfc00, 0.5F, 0xfc00},
      {0x7e00, 0.5F, 0x7fff}, /* NaN */
      {0x7bff, 1.0F, 0x7bff}, /* 65504, the largest */
      {0x7bff, 2.0F, 0x7c00},
      {0x7bff, 1.0002442F, 0x7bff}, /* 65519.996: below the middle to what would be next */
      {0x7bff, 1.0002443F, 0x7c00}, /* 65520.004 */
      {0x0400, 0.5F, 0x0200},       /* the least normal one becomes subnormal */
      {0x0001, 0.5F, 0x0000},       /* half of the least subnormal: a tie, to zero */
      {0x0001, 0.75F, 0x0001},
      {0x0003, 0.5F, 0x0002}, /* a tie, up */
      {0x8000, 0.5F, 0x8000}, /* -0 */
      {0x8001, 0.25F, 0x8000},
      {0x03ff, 2.0F, 0x07fe}, /* subnormal becomes normal */
  };

  (void)state;
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    uint16_t data = (uint16_t)cases[i].before;
    launch(symmshim_scale_fp16, 1, &data, 1, cases[i].factor);
    if (data != cases[i].after)
      fail_msg("%04x * %.9g is %04x instead of %04x", cases[i].before, (double)cases[i].factor, data, cases[i].after);
  }
}

/* The two ways that a kernel knows; `scaled` gives what an element has to become. */
struct kind {
  void (*kernel)(void *, const void *, u64, float);
  size_t size;
  uint32_t (*element)(size_t i);
  uint32_t (*scaled)(size_t i, float factor);
};

static uint32_t bf16_element(size_t i)
{
  return rounded_bf16((double)value_at(i));
}

static uint32_t bf16_scaled(size_t i, float factor)
{
  return rounded_bf16((double)(float_of(bf16_element(i) << 16) * factor));
}

static uint32_t fp16_element(size_t i)
{
  return rounded_fp16((double)value_at(i));
}

static uint32_t fp16_scaled(size_t i, float factor)
{
  return rounded_fp16((double)((float)fp16_value(fp16_element(i)) * factor));
}

static uint32_t fp32_element(size_t i)
{
  return bits_of(value_at(i));
}

static uint32_t fp32_scaled(size_t i, float factor)
{
  return bits_of(value_at(i) * factor);
}

static const struct kind kinds[] = {{symmshim_scale_bf16, 2, bf16_element, bf16_scaled},
                                    {symmshim_scale_fp16, 2, fp16_element, fp16_scaled},
                                    {symmshim_scale_fp32, 4, fp32_element, fp32_scaled}};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static void put(const struct kind *kind, void *memory, size_t i, uint32_t element)
{
  if (kind->size == 2)
    ((uint16_t *)memory)[i] = (uint16_t)element;
  else
    ((uint32_t *)memory)[i] = element;
}

static uint32_t get(const struct kind *kind, const void *memory, size_t i)
{
  return kind->size == 2 ? ((const uint16_t *)memory)[i] : ((const uint32_t *)memory)[i];
}

enum { FACTOR_DIVISOR = 3, MOST = 48 };

/* One launch from a place to another: all of it right, the source as it was, and nothing beside touched. */
static void copy_and_look(const struct kind *kind, size_t to_offset, size_t from_offset, size_t count, unsigned threads)
{
  static _Alignas(16) unsigned char to_memory[32 + 4 * MOST + 32], from_memory[32 + 4 * MOST + 32];
  unsigned char *to = to_memory + 16 + to_offset, *from = from_memory + 16 + from_offset;
  const float factor = 1.0F / FACTOR_DIVISOR;

  memset(to_memory, MARK, sizeof(to_memory));
  memset(from_memory, MARK, sizeof(from_memory));
  for (size_t i = 0; i < count; i++)
    put(kind, from, i, kind->element(i));
  launch_copy(kind->kernel, threads, to, from, count, factor);
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(get(kind, to, i), kind->scaled(i, factor));
    assert_int_equal(get(kind, from, i), kind->element(i));
  }
  for (size_t i = 0; i < sizeof(to_memory); i++) {
    if (i < 16 + to_offset || i >= 16 + to_offset + kind->size * count)
      assert_int_equal(to_memory[i], MARK);
    if (i < 16 + from_offset || i >= 16 + from_offset + kind->size * count)
      assert_int_equal(from_memory[i], MARK);
  }
}

static void every_pair_of_alignments(void **state)
{
  (void)state;
  for (int k = 0; k < KINDS; k++)
    for (size_t to = 0; to < 16; to += kinds[k].size)
      for (size_t from = 0; from < 16; from += kinds[k].size)
        for (size_t count = 0; count <= MOST; count += count < 20 ? 1 : 7)
          copy_and_look(&kinds[k], to, from, count, 3);
}

/* Threads with several vectors under way, with fewer than that, and with none; heads and tails too. */
static void so_many_vectors_that_several_are_in_flight(void **state)
{
  enum { ROOM_ELEMENTS = 8 * 1000 };
  static const unsigned threads[] = {1, 2, 3, 7, 64, 999, 4096};
  static _Alignas(16) uint32_t from[ROOM_ELEMENTS + 8], to[ROOM_ELEMENTS + 8];
  const float factor = 1.0F / FACTOR_DIVISOR;

  (void)state;
  for (int k = 0; k < KINDS; k++)
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++)
      for (size_t shift = 0; shift < 3; shift++) {
        const struct kind *kind = &kinds[k];
        /* Right at, below and above where all threads have the same number of vectors under way. */
        size_t per_round = IN_FLIGHT * threads[t] * (VECTOR / kind->size), count = ROOM_ELEMENTS;
        unsigned char *in = (unsigned char *)from + shift * kind->size, *out = (unsigned char *)to + shift * kind->size;

        if (per_round < ROOM_ELEMENTS)
          count = ROOM_ELEMENTS / per_round * per_round + shift - 1;
        memset(to, MARK, sizeof(to));
        for (size_t i = 0; i < count; i++)
          put(kind, in, i, kind->element(i));
        launch_copy(kind->kernel, threads[t], out, in, count, factor);
        for (size_t i = 0; i < count; i++)
          if (get(kind, out, i) != kind->scaled(i, factor))
            fail_msg("kernel %d, %u threads: element %zu of %zu is wrong", k, threads[t], i, count);
        assert_int_equal(out[kind->size * count], MARK);
        launch(kind->kernel, threads[t], in, count, factor);
        assert_memory_equal(in, out, kind->size * count);
      }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bf16_every_alignment_and_count),
      cmocka_unit_test(fp32_every_alignment_and_count),
      cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_the_specials),
      cmocka_unit_test(any_number_of_threads_does_each_element_once),
      cmocka_unit_test(fp16_every_value),
      cmocka_unit_test(fp16_rounds_to_nearest_even_and_keeps_the_specials),
      cmocka_unit_test(every_pair_of_alignments),
      cmocka_unit_test(so_many_vectors_that_several_are_in_flight),
  };

  return cmocka_run_group_tests_name("scale", tests, NULL, NULL);
}
