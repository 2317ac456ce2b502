/*
 * di_vocab.h - vocabularies and byte-pair encoding.
 *
 * A di_vocab_t is immutable after opening and may be used by any number of
 * threads; it is built once in nginx's master and shared by fork.  A
 * di_tok_t is one thread's scratch (pre-token cache, long pre-tokens).
 *
 * Three kinds of token: *normal* ones come from text; *control* tokens
 * (Hugging Face: special) carry meaning for the model and no text;
 * *user-defined* ones were added by the model's maker, but their spelling is
 * text (<think>, a marker of a tool call).  *Added* means the last two.
 *
 * The seal: di_tok_encode() never returns an added token's id, whatever the
 * text spells.  Those ids come only from di_vocab_special() and from
 * di_tok_encode_raw(), which is for raw prompts: the offline commands, and
 * DeepSeek's "full" encoding.
 */

#ifndef DI_VOCAB_H
#define DI_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../di_err.h"
#include "di_gguf.h"

typedef struct di_vocab_s di_vocab_t;
typedef struct di_tok_s   di_tok_t;

/* Build from GGUF metadata (tokenizer.ggml.*): model "gpt2" (byte-level BPE)
 * with pre-tokenizers smollm, qwen2, llama-bpe, deepseek-r1-qwen and
 * default/gpt-2.  Text is taken as it is: GGUF names no normaliser (Qwen2's
 * own tokenizer would compose it to NFC first).  Keeps nothing of the file.
 * 10 to 30 ms for 50,000 tokens.  DI_ENOMEM; DI_EFORMAT names the key;
 * DI_EUNSUPPORTED names the model or pre-tokenizer. */
int di_vocab_open_gguf(const di_gguf_t *gguf, di_vocab_t **vocab,
                       di_err_t *err);

/* Build from a Hugging Face tokenizer.json of byte-level BPE, len bytes at
 * json: merges as pairs or as strings, a normaliser of NFC or none, any
 * sequence of splits before the bytes.  The known patterns (GPT-2, SmolLM,
 * Qwen 2, Llama 3, DeepSeek V3 and V4) are scanned by hand, others run in
 * PCRE2.  Keeps nothing of json.  bos and the end ids are guessed from
 * well-known spellings; di_vocab_open_path() reads the files that tell.
 * 60 ms for DeepSeek's 128,000 tokens.  DI_ENOMEM; DI_EFORMAT and
 * DI_EUNSUPPORTED begin with the JSON path ("$.model.merges[17]: ..."). */
int di_vocab_open_hf(const char *json, size_t len, di_vocab_t **vocab,
                     di_err_t *err);

/* Open a GGUF file, a tokenizer.json, or a folder that has a tokenizer.json
 * and perhaps tokenizer_config.json, generation_config.json, config.json and
 * chat_template.jinja, which give bos, the end ids, the chat template and
 * the model's type; an error in one of these begins with its name.  As above,
 * and DI_EIO. */
int di_vocab_open_path(const char *path, di_vocab_t **vocab, di_err_t *err);
void di_vocab_close(di_vocab_t *vocab);

uint32_t di_vocab_size(const di_vocab_t *vocab);

/* Bytes of a token (real bytes, not the byte-level alphabet); of a special
 * token, its spelling.  len 0 for unused ids.  id out of range: NULL. */
const char *di_vocab_bytes(const di_vocab_t *vocab, int32_t id, size_t *len);

/* A control token: it has no text when the model emits it.  A user-defined
 * token (such as a marker of reasoning or of a tool call) is not special in
 * this sense: its spelling is text. */
bool di_vocab_is_special(const di_vocab_t *vocab, int32_t id);
/* A control or user-defined token. */
bool di_vocab_is_added(const di_vocab_t *vocab, int32_t id);
bool di_vocab_is_end(const di_vocab_t *vocab, int32_t id);  /* ends a turn  */
/* The end ids: eos, eot, eom, and control tokens with a known spelling such
 * as <|im_end|> and <|endoftext|>; the count.  Live until close. */
size_t di_vocab_end_ids(const di_vocab_t *vocab, const int32_t **ids);

/* Id of the added token spelled exactly so, or -1. */
int32_t di_vocab_special(const di_vocab_t *vocab, const char *text,
                         size_t len);
int32_t di_vocab_bos(const di_vocab_t *vocab);       /* -1: none            */
bool di_vocab_add_bos(const di_vocab_t *vocab);      /* model's own rule    */

/* The chat template that came with the vocabulary, *len bytes and a NUL;
 * NULL if there is none.  Live until close. */
const char *di_vocab_template(const di_vocab_t *vocab, size_t *len);
/* What the model calls itself: config.json's model_type ("deepseek_v41") or
 * GGUF's general.architecture ("llama"); "" if nothing says.  Live until
 * close. */
const char *di_vocab_model_type(const di_vocab_t *vocab);

int di_tok_open(const di_vocab_t *vocab, di_tok_t **tok);
void di_tok_close(di_tok_t *tok);

/* Encode ordinary text.  Any bytes are taken (invalid UTF-8 goes byte by
 * byte); a byte that the vocabulary has no token for is left out, as in the
 * reference implementation (SmolLM2 lacks some control characters).  Writes
 * at most cap ids, *n gets the number that the text has; more than cap is
 * DI_ELIMIT (ids then hold the first cap).  A text of len bytes never has
 * more than len ids, or three times as many if the vocabulary wants its text
 * in NFC.  DI_ELIMIT with *n = 0: a text of 2 GB or more, or one that makes a
 * pattern of the vocabulary's own give up.  O(len) but for such patterns.
 * DI_OK, DI_ELIMIT, DI_ENOMEM. */
int di_tok_encode(di_tok_t *tok, const char *text, size_t len, int32_t *ids,
                  size_t cap, size_t *n);

/* As above, but spelled added tokens become their ids, the leftmost and
 * longest; those of tokenizer.json that are marked as normalised only in
 * what the others leave. */
int di_tok_encode_raw(di_tok_t *tok, const char *text, size_t len,
                      int32_t *ids, size_t cap, size_t *n);

/* The first place at or after `at` where a text may be cut so that its two
 * parts, encoded apart, have the ids of the whole; len if none is found.
 * Places inside words, numbers, runs of spaces or of punctuation are never
 * safe, so a text without words may have none; most places between two
 * Chinese characters are.  O(bytes looked at). */
size_t di_vocab_split(const di_vocab_t *vocab, const char *text, size_t len,
                      size_t at);

#endif
