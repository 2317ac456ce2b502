/*
 * cast.c - test of the small float formats and the records of caches.
 *
 * Codes are held against formulas of their own, rounding against a search of
 * the nearest code, records against vectors that the model's reference
 * implementation made (t/data/casts.json), bit for bit.
 */

#include "../../kernels/cast.h"
#include "check.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double
e4m3(int b)
{
    int exp = b >> 3 & 15;
    double x = exp ? ldexp(1 + (b & 7) / 8.0, exp - 7)
                   : ldexp((b & 7) / 8.0, -6);

    return b & 0x80 ? -x : x;
}

/* The nearest of n codes of magnitudes, the even one of two. */
static int
nearest(double x, double (*value)(int), int n)
{
    int best = 0;
    double d, least = INFINITY;

    for (int i = 0; i < n; i++) {
        d = fabs(value(i) - fabs(x));
        if (d < least || (d == least && i % 2 == 0)) {
            least = d;
            best = i;
        }
    }
    return best;
}

static double
e2m1(int code)
{
    static const double value[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };

    return code & 8 ? -value[code & 7] : value[code];
}

static void
test_codes(void)
{
    for (int b = 0; b < 256; b++) {
        if ((b & 0x7f) == 0x7f) {
            CHECK(isnan(di_e4m3_to_f32((uint8_t) b)));
            continue;
        }
        CHECK(di_e4m3_to_f32((uint8_t) b) == e4m3(b));
        CHECK_EQ_INT(di_f32_to_e4m3(di_e4m3_to_f32((uint8_t) b)), b);
    }
    for (int c = 0; c < 16; c++) {
        CHECK(di_e2m1_to_f32((uint8_t) c) == e2m1(c));
        CHECK_EQ_INT(di_f32_to_e2m1(di_e2m1_to_f32((uint8_t) c)), c);
    }
    CHECK_EQ_INT(di_f32_to_e4m3(1e9f), 0x7e);
    CHECK_EQ_INT(di_f32_to_e4m3(-INFINITY), 0xfe);
    CHECK_EQ_INT(di_f32_to_e4m3(NAN) & 0x7f, 0x7f);
    CHECK_EQ_INT(di_f32_to_e2m1(1e9f), 7);
    CHECK_EQ_INT(di_f32_to_e2m1(-1e9f), 15);
    CHECK(di_ue8m0_to_f32(127) == 1 && di_ue8m0_to_f32(0) == 0x1p-127f
          && di_ue8m0_to_f32(254) == 0x1p127f && isnan(di_ue8m0_to_f32(255)));
}

/* Between two codes, at their middle, and beside it. */
static void
test_rounding(void)
{
    float low, high, x[5];

    for (int b = 0; b < 0x7e; b++) {
        low = (float) e4m3(b);
        high = (float) e4m3(b + 1);
        x[0] = (low + high) / 2;
        x[1] = nextafterf(x[0], 0);
        x[2] = nextafterf(x[0], 1e9f);
        x[3] = low + (high - low) / 3;
        x[4] = -x[0];
        for (int i = 0; i < 5; i++)
            CHECK_EQ_INT(di_f32_to_e4m3(x[i]) & 0x7f,
                         nearest(x[i], e4m3, 0x7f));
        CHECK_EQ_INT(di_f32_to_e4m3(x[4]) >> 7, 1);
    }
    for (float v = -8; v <= 8; v += 1.0f / 64)
        CHECK_EQ_INT(di_f32_to_e2m1(v) & 7, nearest(v, e2m1, 8));
}

static void
hex(const char *text, uint8_t *bytes)
{
    for (unsigned b; sscanf(text, "%2x", &b) == 1; text += 2)
        *bytes++ = (uint8_t) b;
}

static void
test_golden(const json_t *vector, const char *key, di_cast_t cast)
{
    enum { N = 64 };
    const json_t *input = json_object_get(vector, "input");
    const json_t *want = json_object_get(vector, key);
    uint8_t data[N], scales[N], want_data[N] = { 0 }, want_scales[N] = { 0 };
    size_t n_data = di_cast_data_bytes(cast, N);
    size_t n_scales = di_cast_scale_bytes(cast, N);
    float x[N], y[N];

    CHECK_EQ_INT(json_array_size(input), N);
    for (size_t i = 0; i < N; i++)
        x[i] = (float) json_number_value(json_array_get(input, i));
    hex(json_string_value(json_object_get(want, "data")), want_data);
    hex(json_string_value(json_object_get(want, "scale")), want_scales);
    di_cast_put(cast, x, N, data, scales);
    CHECK_EQ_INT(strlen(json_string_value(json_object_get(want, "data"))),
                 2 * n_data);
    CHECK(memcmp(data, want_data, n_data) == 0);
    CHECK(memcmp(scales, want_scales, n_scales) == 0);

    di_cast_get(cast, data, scales, N, y);
    for (size_t i = 0; i < N; i++)
        CHECK(y[i] == (float) json_number_value(json_array_get(
                          json_object_get(want, "value"), i)));
}

int
main(void)
{
    json_t *vectors = json_load_file("t/data/casts.json", 0, NULL), *vector;
    size_t i;

    test_codes();
    test_rounding();
    CHECK(json_array_size(vectors) > 0);
    json_array_foreach(vectors, i, vector) {
        test_golden(vector, "e4m3_ue8m0_32", DI_CAST_E4M3_32);
        test_golden(vector, "e2m1_ue8m0_32", DI_CAST_E2M1_32);
        test_golden(vector, "e2m1_e4m3_16", DI_CAST_E2M1_16);
    }
    json_decref(vectors);
    return check_done("cast");
}
