#!/usr/bin/env python3
"""Write echo.gguf, the echo engine's model: a vocabulary and no tensors.

    python3 t/data/echo_gguf.py t/data/echo.gguf

Ids are laid out so that tests can compute them:

    0 <|endoftext|>   1 <|im_start|>   2 <|im_end|>   (control tokens)
    3 + b             the single byte b, for each of the 256
    259 ...           merged tokens, in the order of WORDS' merges
    last              <|reserved|>, a control token that ends nothing

The chat template is SmolLM2's text, so that the ChatML dialect is recognised
by it, default system prompt included.
"""

import struct
import sys

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != "
    "'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named "
    "SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Words that get a token of their own, built by merges from the left.
WORDS = [
    " the", " and", " to", " of", " in", " is", " you", " that", " it",
    " hello", " world", "hello", "Hello", "world", "the", "ing", " a",
    "user", "system", "assistant", "token", " token", "\n\n", "  ", "    ",
    "caf\u00e9", "\u4f60\u597d",
]

U32, F32, BOOL, STR, ARRAY = 4, 6, 7, 8, 9


def byte_alphabet():
    """GPT-2's printable stand-ins of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    table = {b: chr(b) for b in plain}
    table.update({b: chr(256 + i) for i, b in enumerate(other)})
    return table


def vocabulary():
    alphabet = byte_alphabet()
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    types = [3, 3, 3]
    tokens += [alphabet[b] for b in range(256)]
    merges = []
    for word in WORDS:
        spelled = "".join(alphabet[b] for b in word.encode())
        for n in range(2, len(spelled) + 1):
            if spelled[:n] not in tokens:
                merges.append(spelled[:n - 1] + " " + spelled[n - 1])
                tokens.append(spelled[:n])
    types += [1] * (len(tokens) - len(types))
    return tokens + ["<|reserved|>"], types + [3], merges


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, v):
    if kind == STR:
        return string(v)
    return struct.pack({U32: "<I", F32: "<f", BOOL: "<?", 5: "<i"}[kind], v)


def pair(key, kind, v, of=None):
    data = string(key) + struct.pack("<I", kind)
    if kind == ARRAY:
        data += struct.pack("<IQ", of, len(v))
        return data + b"".join(value(of, x) for x in v)
    return data + value(kind, v)


def main():
    tokens, types, merges = vocabulary()
    pairs = [
        pair("general.architecture", STR, "llama"),
        pair("general.type", STR, "model"),
        pair("general.name", STR, "Echo"),
        pair("llama.block_count", U32, 1),
        pair("llama.context_length", U32, 131072),
        pair("llama.embedding_length", U32, 64),
        pair("llama.feed_forward_length", U32, 64),
        pair("llama.attention.head_count", U32, 1),
        pair("llama.attention.head_count_kv", U32, 1),
        pair("llama.rope.freq_base", F32, 10000.0),
        pair("llama.rope.dimension_count", U32, 64),
        pair("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        pair("llama.vocab_size", U32, len(tokens)),
        pair("general.file_type", U32, 0),
        pair("tokenizer.ggml.model", STR, "gpt2"),
        pair("tokenizer.ggml.pre", STR, "smollm"),
        pair("tokenizer.ggml.tokens", ARRAY, tokens, STR),
        pair("tokenizer.ggml.token_type", ARRAY, types, 5),
        pair("tokenizer.ggml.merges", ARRAY, merges, STR),
        pair("tokenizer.ggml.bos_token_id", U32, 1),
        pair("tokenizer.ggml.eos_token_id", U32, 2),
        pair("tokenizer.ggml.unknown_token_id", U32, 0),
        pair("tokenizer.ggml.padding_token_id", U32, 2),
        pair("tokenizer.ggml.add_bos_token", BOOL, False),
        pair("tokenizer.ggml.add_space_prefix", BOOL, False),
        pair("tokenizer.chat_template", STR, TEMPLATE),
    ]
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)
    data += b"\0" * (-len(data) % 32)
    with open(sys.argv[1], "wb") as f:
        f.write(data)


if __name__ == "__main__":
    main()
