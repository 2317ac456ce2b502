/*
 * vec_avx2.c - the loops of vec.h on AVX2: those of loops16.h and
 * index16.h.
 */

#include "loops16.h"

#include "index16.h"

const di_cpu_vec_t di_cpu_vec_avx2 = { dots, weigh, remix, softmax, gate,
                                       queries, score, cast_get };
