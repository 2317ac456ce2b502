#!/usr/bin/env python3
"""Vectors for t/unit/{pretok,vocab}.c from the tokenizers package.

usage: make_vectors.py SmolLM2-135M-Instruct.Q4_1.gguf GOLDEN.json OUTDIR
needs: tokenizers gguf

Writes, with the same result every time:
  classes.txt      class of every code point, as ranges
  smollm2.jsonl    texts and their ids in the vocabulary of the model file
  NAME.gguf        small vocabularies with other pre-tokenizers, trained here
  NAME.jsonl       texts and their ids in them
A line of a .jsonl file is {"text", "ids"}, with "raw": true where special
tokens in the text become their ids.
"""
import json
import os
import random
import sys

from gguf import GGUFReader, GGUFWriter
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

SENTENCES = [
    "The quick brown fox can't jump over the lazy dog's fence, and it won't try again; they'll see, I've said, we're done, I'd go, I'm off.",
    "In 1984 about 3,141,592 people paid $12.50 (or 17.5% more) for 1/2 of it: 0x1F, 1e-9, ½, Ⅷ, ٣٤٥, १२३, 𝟛.",
    "Übermäßig große Flüsse führen über Äcker; die Straße heißt „Größe“.",
    "L'été où j'ai mangé des crêpes à Nîmes, c'était l'œuvre d'un garçon naïf.",
    "El pingüino de Wenceslao hizo kilómetros bajo exhaustiva lluvia, ¿verdad? ¡Sí!",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία σε μια μέρα.",
    "用一句话介绍北京。今天天气很好，我们去公园散步吧！价格是３５元。",
    "色は匂へど散りぬるを。カタカナとひらがな、漢字が混ざる文章です。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر.",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה.",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश।",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl.",
    "Ταΰγετος, e\u0301tude (combining), Zoe\u0308, n\u0303; \u1112\u1161\u11ab; ﬁ ﬂ; ſ's 'ſ 'ſa.",
    "🚀🔥 What? 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 ☃️ ✈︎ emoji\u200djoined",
    "\u200b\u200czero\u200dwidth\ufeff \u00adsoft \u202eoverride\u202c \u2066iso\u2069",
    "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n\tfor (int i = 0; i < 10; i++)\n\t\tprintf(\"%d\\n\", i);\n\treturn 0;\n}\n",
    "def mean(xs):\n    total = 0\n    for x in xs:\n        total += x  # sum\n    return total / len(xs)\n\n\nclass A(B):\n    pass\n",
    "SELECT id, name FROM users WHERE age >= 21 AND name LIKE '%o''brien%';",
    "<html>\n  <body class=\"x\">&nbsp;<br/></body>\n</html>\r\n\r\nline\r\n\tend",
    "{\"a\": [1, 2.5, -3e10, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}",
    "https://example.com/a/b?c=d&e=%20f#g  user@example.org  C:\\dir\\file.txt",
    "aGVsbG8gd29ybGQhIHRoaXMgaXMgYmFzZTY0IGVuY29kZWQgdGV4dA==",
    "ALL CAPS SHOUTING, CamelCaseIdentifier, snake_case_name, kebab-case, I'LL 'RE 'Ve.",
    "\\frac{a}{b} \\sum_{i=1}^{n} x_i^2 \\leq \\infty, ∀x∈ℝ: x² ≥ 0 ⇒ √x",
    "- [ ] item\n- [x] done\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```c\nint x;\n```\n",
]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\n ", "\r\n", "\u00a0", "\u3000", " \u00a0", "\u2028", "\u0085", "\x0b\x0c", "\u1680\u2003 "]
RUNS = ["a", " ", "\n", "ab", "的", "🚀", "=", "-", "0", "  \n", "\t", "中文", "'s", "x ", "é", "!?"]


def texts(special):
    """(text, raw) pairs."""
    rnd = random.Random(20240607)
    out = [(s, False) for s in SENTENCES] + [(" " + s, False) for s in SENTENCES[:10]]
    out += [("", False), ("The", False), (" ", False), ("\n", False), ("'", False), ("''", False), ("'s", False)]
    for a in SPACES:
        for b in ("a", "1", "!", "", "é", "'s"):
            out.append(("x" + a + b, False))
    for r in RUNS:
        for n in (2, 16, 63, 129, 400):
            out.append((r * n, False))
    for i in range(60):
        kind, n, s = i % 6, rnd.randrange(5, 60), []
        for _ in range(n):
            c = (rnd.randrange(0x110000) if kind == 0 else rnd.randrange(0x3000) if kind == 1
                 else rnd.randrange(0x4e00, 0x9fa6) if kind == 2 else rnd.randrange(0x20, 0x7f) if kind == 3
                 else ord(rnd.choice("'stredmlvSTREDMLV \n0123ab.ſ")) if kind == 4 else rnd.randrange(0x1f300, 0x1fa00))
            s.append(" " if 0xd800 <= c < 0xe000 else chr(c))
        out.append(("".join(s), False))
    for i in range(20):
        out.append(("".join(rnd.choice(SENTENCES)[rnd.randrange(20):][:rnd.randrange(1, 60)] + rnd.choice(SPACES) for _ in range(6)), False))
    for s in special:
        out += [(s, False), (s, True), ("a " + s + s[:-1] + s + " b", True)]
    for _ in range(10):
        t = "".join(rnd.choice(special + ["a", " ", "\n", "<|", "<", "end|>"]) for _ in range(12))
        out += [(t, False), (t, True)]
    return out


def write_vectors(path, plain, raw, special, more=()):
    with open(path, "w", encoding="ascii") as f:
        for text, is_raw in list(more) + texts(special):
            ids = (raw if is_raw else plain).encode(text, add_special_tokens=False).ids
            case = {"text": text, "ids": ids}
            if is_raw:
                case["raw"] = True
            f.write(json.dumps(case, separators=(",", ":")) + "\n")


def with_special(tok, special):
    raw = Tokenizer.from_str(tok.to_str())
    raw.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    return raw


def smollm2(src, golden, out):
    f = {k: v.contents() for k, v in GGUFReader(src).fields.items() if not k.startswith("GGUF.")}
    toks, types, merges = (f["tokenizer.ggml." + k] for k in ("tokens", "token_type", "merges"))
    tok = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(toks)}, merges=[tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    special = [s for s, t in zip(toks, types) if t == 3]
    raw = with_special(tok, special)
    prompts = []
    for case in json.load(open(golden))["cases"]:
        assert raw.encode(case["text"], add_special_tokens=False).ids == case["prompt_ids"], case["name"]
        prompts.append((case["text"], True))
    write_vectors(os.path.join(out, "smollm2.jsonl"), tok, raw, special, prompts)


def all_splits(vocab, merges):
    """The rules as a list of tokens in order of rank gives them: each token by each of its splits."""
    rules = []
    for rank, (a, b) in enumerate(merges):
        word = a + b
        rules += [(rank, vocab[word[:i]], vocab[word[i:]], (word[:i], word[i:])) for i in range(1, len(word))
                  if word[:i] in vocab and word[i:] in vocab]
    return [r[3] for r in sorted(rules, key=lambda r: r[:3])]


def small(name, pre, pattern, out, special, whole=False):
    """Train a small vocabulary; write it and its vectors."""
    split = (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True) if pattern is None else
             pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = split
    trained.train_from_iterator(SENTENCES * 2, trainers.BpeTrainer(
        vocab_size=1100, min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(trained.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    if whole:
        # Tokens that no rule makes: taken only by whole pre-tokens.
        for word in ("Ġquick", "Ġfuncionalidad", "zzz", "ĠcrÃªpes", "\u010a\u010a\u010a\u010a\u010a"):
            vocab.setdefault(word, len(vocab))
        merges = all_splits(vocab, merges)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole))
    tok.pre_tokenizer = split
    raw = with_special(tok, special)
    write_vectors(os.path.join(out, name + ".jsonl"), tok, raw, special)

    tokens = sorted(vocab, key=vocab.get) + special
    assert [vocab[t] for t in tokens[:len(vocab)]] == list(range(len(vocab)))
    w = GGUFWriter(os.path.join(out, name + ".gguf"), "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types([1] * len(vocab) + [3] * (len(special) - 1) + [4])
    w.add_token_merges([" ".join(m) for m in merges])
    w.add_bos_token_id(len(vocab))
    w.add_eos_token_id(len(vocab) + 1)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def classes(out):
    """Ranges of letters, numbers, white space, marks, punctuation and symbols: what the parts of the patterns match."""
    cls = {}
    for pattern, name in ((r"\p{L}", "L"), (r"\p{N}", "N"), (r"\s", "S"), (r"\p{M}", "M"), (r"[\p{P}\p{S}]", "P")):
        split = pre_tokenizers.Split(Regex(pattern), "removed")
        for base in range(0, 0x110000, 0x1000):
            codes = [c for c in range(base, base + 0x1000) if not 0xd800 <= c < 0xe000]
            text = "".join(map(chr, codes))
            rest = set()
            for _, (a, b) in split.pre_tokenize_str(text) if text else ():
                rest.update(range(a, b))
            for i, c in enumerate(codes):
                if i not in rest:
                    assert c not in cls
                    cls[c] = name
    with open(os.path.join(out, "classes.txt"), "w") as f:
        first = None
        for c in range(0x110001):
            if first is not None and cls.get(c) != cls[first]:
                f.write(f"{first:x} {c - 1:x} {cls[first]}\n")
                first = None
            if first is None and c in cls:
                first = c


if __name__ == "__main__":
    model, golden, out = sys.argv[1:4]
    classes(out)
    smollm2(model, golden, out)
    small("gpt2", "gpt-2", None, out, ["<|start|>", "<|endoftext|>", "<|user|>"])
    small("qwen2", "qwen2", QWEN2, out, ["<|im_start|>", "<|im_end|>", "<|im", "<tool_call>"])
    small("llama3", "llama-bpe", LLAMA3, out, ["<|begin_of_text|>", "<|eot_id|>", "<|header|>", "<tool>"], whole=True)
