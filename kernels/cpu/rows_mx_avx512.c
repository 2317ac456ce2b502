/*
 * rows_mx_avx512.c - row-wise operators and attention of DI_ARITH_MX on
 * AVX-512: those of rows16.h and attention16.h.
 */

#include "attention16.h"

DI_OPS16(DI_ARITH_MX, mx, avx512)
