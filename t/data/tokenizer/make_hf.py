#!/usr/bin/env python3
"""Vectors of token ids in vocabularies of other shapes than DeepSeek's, from the tokenizers package.

usage: make_hf.py OUTDIR
needs: tokenizers gguf (which make_vectors.py imports)

Writes OUTDIR/NAME/tokenizer.json.gz, trained here, and OUTDIR/hf.jsonl.gz for build/recipe-vectors, with the same
result every time:
  nfc      Qwen's pattern, text in normalisation form C, added tokens of every kind
  words    Llama 3's pattern; a pre-token that is a token is taken as it is
  own      a pattern that has no scanner: PCRE2 runs it
"""
import gzip
import json
import os
import sys

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from make_vectors import LLAMA3, QWEN2, SENTENCES, texts

OWN = [r"\p{N}{1,2}(?=\p{N}|\s)", r"(?i:[sdmt]|ll|ve|re)(?!\p{L})|[^\r\n\p{L}\p{N}]?+[\p{L}\p{M}]+|[^\s\p{L}\p{M}\p{N}]++[\r\n/]*|\s+(?!\S)|\s"]
NFC = ["e\u0301 E\u0301\u0323", "\u1112\u1161\u11ab\u11ab", "\u212b\u2126\u0958", "a\u0301\u0327b", "\u0301", "\u0344x",
       "\u0cc6\u0cc2\u0cd5", "的\u3099か\u3099", "\uac00\u11a8", "\U0001d15e", "\U0002f800", "<a\u0301>", "x<a\u0301>y"]


def pack(path, text):
    with open(path, "wb") as f, gzip.GzipFile("", "wb", 9, f, 0) as z:
        z.write(text.encode())


def make(name, patterns, out, lines, nfc=False, words=False):
    trained = Tokenizer(models.BPE())
    if nfc:
        trained.normalizer = normalizers.NFC()
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trained.train_from_iterator(SENTENCES * 2 + NFC * 3, trainers.BpeTrainer(
        vocab_size=1000, min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    j = json.loads(trained.to_str())
    if words:
        j["model"]["ignore_merges"] = True
        for word in ("Ġquick", "ĠcrÃªpes", "zzz"):
            j["model"]["vocab"].setdefault(word, len(j["model"]["vocab"]))
    plain = Tokenizer.from_str(json.dumps(j))
    raw = Tokenizer.from_str(json.dumps(j))
    special = ["<|start|>", "<|end|>", "<\u00e1>", "<think>", "<th"]
    raw.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special[:2]])
    raw.add_tokens([AddedToken(s, special=False, normalized=i % 2 == 0) for i, s in enumerate(special[2:])])
    os.makedirs(os.path.join(out, name), exist_ok=True)
    pack(os.path.join(out, name, "tokenizer.json.gz"), raw.to_str())
    for i, (text, full) in enumerate(texts(special) + [(s, r) for s in NFC for r in (False, True)]):
        ids = (raw if full else plain).encode(text, add_special_tokens=False).ids
        lines.append(json.dumps({"name": f"{name}/{i}", "input": {
            "tokenizer": name, "mode": "full" if full else "plain", "text": text}, "expected": {"ids": ids}}))


if __name__ == "__main__":
    lines = []
    make("nfc", [QWEN2], sys.argv[1], lines, nfc=True)
    make("words", [LLAMA3], sys.argv[1], lines, words=True)
    make("own", OWN, sys.argv[1], lines)
    pack(os.path.join(sys.argv[1], "hf.jsonl.gz"), "\n".join(lines) + "\n")
