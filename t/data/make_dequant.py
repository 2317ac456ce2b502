#!/usr/bin/env python3
"""Write dequant.json: blocks of each weight type and their values.

The values are those of gguf-py, the reference reader of the format (PyPI
`gguf`, numpy).  Blocks are random bits, their float16 scales set so that no
value is infinite.
"""

import json
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

SCALES = {                       # bytes in a block where a float16 lies
    T.F16: [], T.BF16: [], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0],
    T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2],
    T.Q6_K: [208],
}

rng = np.random.default_rng(1)
out = []
for t, at in SCALES.items():
    n, size = GGML_QUANT_SIZES[t]
    blocks = 256 // n
    raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    if not at:                   # floats: clear an exponent bit, no NaN
        raw[:, 1] &= 0xbf
    for a in at:
        d = rng.uniform(-0.05, 0.05, blocks).astype(np.float16)
        raw[:, a:a + 2] = d.view(np.uint8).reshape(blocks, 2)
    values = dequantize(raw.reshape(-1), t).reshape(-1)
    out.append({"type": int(t), "name": t.name,
                "bytes": raw.tobytes().hex(),
                "values": [float(f"{v:.9g}") for v in values]})
json.dump(out, sys.stdout)
print()
