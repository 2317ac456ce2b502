/*
 * grammar_schema.c - fuzz JSON Schemas (t/fuzz/grammar_make.h).
 */

#include "t/fuzz/grammar_make.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_grammar(DI_GRAM_SCHEMA, data, size);
}
