/*
 * rows_q8_avx2.c - row-wise operators and attention of DI_ARITH_Q8 on AVX2:
 * those of rows16.h and attention16.h.
 */

#include "attention16.h"

DI_OPS16(DI_ARITH_Q8, q8, avx2)
