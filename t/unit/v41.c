/*
 * v41.c - DeepSeek-V4.1 against the goldens of tiny-v41, plain and quantised.
 */

#include <math.h>

#include "v41_model.h"

#define TOLERANCE 1e-3           /* of logits, float32 against float64      */

/* Compare the listed logits; returns the largest difference. */
static double
differs(const float *row, const json_t *top)
{
    const json_t *ids = json_object_get(top, "ids");
    const json_t *values = json_object_get(top, "values");
    double        worst = 0, d;

    for (size_t i = 0; i < json_array_size(ids); i++) {
        d = fabs(row[(size_t) v41_num(ids, i)] - v41_num(values, i));
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

static void
test_forward(const char *golden, const char *dir)
{
    json_t     *prompts = v41_golden(golden, "prompts");
    json_t     *forward = v41_golden(golden, "forward"), *list, *top;
    di_model_t *m = v41_open(dir, DI_ARITH_F32, 128);
    uint32_t    vocab = di_model_info(m)->vocab;
    const char *name;
    size_t      i;

    json_object_foreach(json_object_get(forward, "prompts"), name, list) {
        v41_seq_t q;
        int32_t   ids[V41_LEN];
        float    *all;

        v41_seq_init(&q, 0, ids, v41_prompt(prompts, name, ids));
        all = v41_rows(m, &q, 128);
        json_array_foreach(list, i, top) {
            double d = differs(all + (size_t) v41_int(top, "pos") * vocab,
                               top);

            CHECK(d <= TOLERANCE);
            if (!(d <= TOLERANCE))
                printf("%s, %s, position %d: %g\n", golden, name,
                       v41_int(top, "pos"), d);
        }
        free(all);
    }
    di_model_close(m);
    json_decref(forward);
    json_decref(prompts);
}

int
main(void)
{
    if (!v41_unpack()) {
        printf("can't unpack tiny-v41\n");
        return 1;
    }
    test_forward("tiny-v41", v41_plain);
    test_forward("tiny-v41-fp8", V41_FP8);
    return check_done("v41");
}
