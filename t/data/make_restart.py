#!/usr/bin/env python3
"""Write restart.json: a prompt gone on with where only block KV is left.

    t/data/make_restart.py REFERENCE MODEL > MODEL/golden/restart.json

REFERENCE is the folder of v41_reference.py, the implementation in PyTorch that
made the other goldens; MODEL the unpacked checkpoint.  512 tokens of `long`
are computed whole; then a sequence that has their block KV and no windows
goes on, in compact mode with 140 tokens kept, and decodes greedily.
"""

import json
import os
import sys

sys.path.insert(0, sys.argv[1])
import torch                                            # noqa: E402
from v41_reference import Model, State                  # noqa: E402

FLOOR, KEEP = 512, 140


def top(x, k):
    values, ids = torch.topk(x, k)
    return {'ids': ids.tolist(),
            'values': [round(float(v), 6) for v in values]}


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    m = Model.load(sys.argv[2]).double()
    with open(os.path.join(sys.argv[2], 'golden', 'prompts.json')) as f:
        ids = json.load(f)['long']['ids']
    st = State()
    m.forward([(st, ids[:FLOOR], len(ids))], mode='compact', keep=KEEP)
    st.win, st.gv, st.valid_start = {}, {}, FLOOR
    o = m.forward([(st, ids[FLOOR:])], mode='compact', keep=KEEP,
                  logits='all')[0]
    out = {'keep': KEEP, 'floor': FLOOR, 'prompt': 'long', 'rows': [
        {'pos': int(o['pos'][i])} | top(o['logits'][i], 20)
        for i in (0, 1, 50, 100, 138, 139)], 'decode': []}
    x = o['logits'][-1]
    for _ in range(16):
        token = int(x.argmax())
        x = m.forward([(st, [token])])[0]['logits'][-1]
        out['decode'].append({'input': token, 'pos': st.n - 1} | top(x, 5))
    print(json.dumps(out))


main()
