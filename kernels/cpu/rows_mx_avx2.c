/*
 * rows_mx_avx2.c - row-wise operators and attention of DI_ARITH_MX on
 * AVX2: those of rows16.h and attention16.h.
 */

#include "attention16.h"

DI_OPS16(DI_ARITH_MX, mx, avx2)
