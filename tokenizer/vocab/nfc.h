/*
 * nfc.h - text in Unicode's normalisation form C.
 *
 * Inside tokenizer/vocab only; immutable once built.  Nearly all text is in
 * this form already, which a table of bits tells: one for each code point
 * that is changed, or may join with what is before it.
 */

#ifndef DI_NFC_H
#define DI_NFC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t *odd;          /* [0x40000 / 64]; no code from there on changes */
} di_nfc_t;

bool di_nfc_init(di_nfc_t *n);              /* false: no memory; 10 ms       */
void di_nfc_deinit(di_nfc_t *n);

/* Is a text surely in this form?  Bytes that are no UTF-8 are. */
bool di_nfc_is(const di_nfc_t *n, const char *text, size_t len);

/* The text in this form, invalid bytes as they are; owned by the caller, NULL:
 * no memory.  Up to three times as long. */
char *di_nfc_make(const char *text, size_t len, size_t *made);

#endif
