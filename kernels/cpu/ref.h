/*
 * ref.h - inside of the reference kernels: plain loops, for checking.
 *
 * Layouts that the reference shares with the fast kernels of the same
 * arithmetic, so that a test can compare their bytes:
 *
 * Activation rows of k values, padded to 64 bytes:
 *   F32   float x[k]
 *   BF16  bfloat16 x[k]; bfloat16 sum[k / 32][4]
 *   Q8    int8 q[k]; float scale[k / 32]; float sum[k / 32];
 *         int16 half[k / 16]: the sums of q over 16
 *   MX    see mx.h
 * where sum is that of the rounded values of a run of 32 (Q8: times scale),
 * added as a tree: halves, quarters, ...: di_ref_sum32().  BF16 keeps it as
 * {h, l, h, l}, h = bfloat16(sum), l = bfloat16(sum - h), and zeros behind
 * the last up to 64 bytes: an operand of the product with the minima.
 *
 * KV regions of one head in one block of 16 tokens (t: token, d: dimension):
 *   F32   K float [d][t], V float [t][d]
 *   BF16  K bfloat16 [d / 2][t][d % 2], V bfloat16 [t / 2][d][t % 2]:
 *         both are tiles of AMX's second operand as they lie
 *   Q8, MX  as BF16
 */

#ifndef DI_CPU_REF_H
#define DI_CPU_REF_H

#include "cpu.h"

/* Round a row of k values to an arithmetic's activation row. */
void di_ref_act(di_arith_t arith, const float *x, size_t k, uint8_t *row);
float di_ref_sum32(const float *x);
size_t di_ref_act_bytes(di_arith_t arith, size_t k);

void di_ref_norm(di_arith_t arith, const di_cpu_norm_t *a, size_t r0,
                 size_t r1);
void di_ref_silu_mul(di_arith_t arith, const di_cpu_silu_t *a, size_t r0,
                     size_t r1);
void di_ref_convert(di_arith_t arith, const di_cpu_convert_t *a, size_t r0,
                    size_t r1);
void di_ref_rope_store(di_arith_t arith, const di_cpu_rope_t *a,
                       const int32_t *table, size_t r0, size_t r1);
void di_ref_attention(di_arith_t arith, const di_cpu_attn_t *a,
                      const di_cpu_attn_item_t *item);
void di_ref_kv_copy(di_arith_t arith, const di_cpu_kv_t *kv, uint8_t *dst,
                    const uint8_t *src, uint32_t n_tokens);

void di_ref_matmul_f32(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                       size_t p0, size_t p1, size_t r0, size_t r1,
                       void *scratch);
void di_ref_matmul_bf16(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                        size_t p0, size_t p1, size_t r0, size_t r1,
                        void *scratch);
void di_ref_matmul_q8(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                      size_t p0, size_t p1, size_t r0, size_t r1,
                      void *scratch);
void di_ref_matmul_mx(const di_cpu_matmul_t *a, const di_cpu_wpart_t *part,
                      size_t p0, size_t p1, size_t r0, size_t r1,
                      void *scratch);

#endif
