#!/usr/bin/env python3
"""make_v41.py - a DeepSeek-V4.1 directory with random weights.

    t/bench/make_v41.py PRESET DIR [KEY=VALUE ...]

Presets: `bench` (1.5 B parameters, 0.3 B of them active), `flash` (the
released model's dimensions with few layers and experts), `tiny` (for tests).
KEY=VALUE replaces a number or list of text_config: `num_hidden_layers=4` needs
a fitting `compress_ratios=[...]`.  Tokenizer and whatever else a directory has
come from t/data/tiny-v41-fp8.

`hollow` is the released model itself, with its configuration, tokenizer and
some dozens of files, but no weights: behind their headers the files are holes,
which read as zeros and take no room on disks that know of holes.

Weights are what a trained model's look like to the kernels: normal values of
variance 1 / inputs in the storage formats, hyper-connections as they are
initialised.  The same arguments give the same bytes.  Only the standard
library is needed: normal values come from tables of quantiles, by which
random bytes are translated.  Prints one line of JSON with the sizes.
"""

import gzip
import json
import os
import random
import shutil
import statistics
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = os.path.join(HERE, '..', 'data', 'tiny-v41-fp8')

PRESETS = {
    'bench': dict(
        hidden_size=1536, num_hidden_layers=8, num_attention_heads=16,
        head_dim=256, qk_rope_head_dim=64, q_lora_rank=512, o_groups=4,
        o_lora_rank=512, compress_ratios=[0, 2, 2, 2, 1, 1, 1, 1, 0, 0],
        kv_source_layer_ids=[1, 3, 4], index_source_layer_ids=[1, 3, 4, 6],
        index_n_heads=16, index_head_dim=128, index_topk=512,
        candidate_source_layer_id=4, candidate_topk_blocks=256,
        n_routed_experts=48, num_experts_per_tok=6,
        moe_intermediate_size=768, engram_layer_ids=[0, 3],
        engram_vocab_size=20000, engram_n_heads=4, engram_head_dim=128,
        dspark_target_layer_ids=[5, 6, 7], dspark_markov_rank=64,
        max_position_embeddings=131072),
    'flash': dict(
        hidden_size=5120, num_hidden_layers=6, num_attention_heads=64,
        head_dim=512, qk_rope_head_dim=64, q_lora_rank=1280, o_groups=8,
        o_lora_rank=1024, compress_ratios=[0, 2, 2, 1, 1, 1, 0],
        kv_source_layer_ids=[1, 3], index_source_layer_ids=[1, 3, 4],
        index_n_heads=32, index_head_dim=128, index_topk=512,
        candidate_source_layer_id=3, candidate_topk_blocks=2048,
        n_routed_experts=8, num_experts_per_tok=6,
        moe_intermediate_size=2304, engram_layer_ids=[0],
        engram_max_ngram_size=4, engram_vocab_size=20000, engram_n_heads=8,
        engram_head_dim=256, num_nextn_predict_layers=1,
        dspark_target_layer_ids=[3, 4, 5], dspark_markov_rank=256,
        dspark_n_routed_experts=4, dspark_num_experts_per_tok=3,
        max_position_embeddings=1048576),
    'tiny': dict(hidden_size=64, moe_intermediate_size=32, q_lora_rank=32),
    'hollow': {},
}

# -- values ------------------------------------------------------------------

E2M1 = [0, .5, 1, 1.5, 2, 3, 4, 6]
E4M3 = [(1 + c % 8 / 8) * 2.0 ** (c // 8 - 7) if c > 7 else c / 512
        for c in range(127)]


def quantiles(n):
    return [statistics.NormalDist().inv_cdf((i + .5) / n) for i in range(n)]


def nearest(values, x, sign):
    best = min(range(len(values)), key=lambda c: abs(values[c] - abs(x)))
    return best | (sign if x < 0 else 0)


# The scale that puts a standard deviation at 64 in E4M3 and at 2 in E2M1.
FP8_TABLE = bytes(nearest(E4M3, q * 64, 0x80) for q in quantiles(256))
NIBBLES = [nearest(E2M1, q * 2, 8) for q in quantiles(16)]
FP4_TABLE = bytes(NIBBLES[i % 16] | NIBBLES[i // 16] << 4 for i in range(256))


def bf16(x):
    return (struct.unpack('<I', struct.pack('<f', x))[0] + 0x8000) >> 16


class Values:
    """Random bytes of tensors, a chunk at a time."""

    CHUNK = 1 << 20

    def __init__(self, seed):
        self.rnd = random.Random(seed)
        self.pool = {}

    def translated(self, n, table):
        while n > 0:
            m = min(n, self.CHUNK)
            yield self.rnd.randbytes(m).translate(table)
            n -= m

    def scales(self, n, inputs, unit):
        """Powers of two, one for all: that of the wanted deviation."""
        exp = round(-unit - .5 * (inputs.bit_length() - 1))
        yield bytes([127 + exp]) * n

    def normal(self, n, deviation):
        """BF16, cut from a pool of normal values at random places."""
        if deviation not in self.pool:
            self.pool[deviation] = b''.join(
                struct.pack('<H', bf16(self.rnd.gauss(0, deviation)))
                for _ in range(1 << 15))
        pool = self.pool[deviation]
        while n > 0:
            at = 2 * self.rnd.randrange(len(pool) // 4)
            m = min(2 * n, len(pool) // 2)
            yield pool[at:at + m]
            n -= m // 2


def floats(values):
    return struct.pack('<%df' % len(values), *values)


# -- tensors -----------------------------------------------------------------

class Tensors:
    """The tensors of a configuration: name, dtype, shape, and a function that
    yields the bytes."""

    def __init__(self, conf, values):
        self.c = conf
        self.v = values
        self.list = []

    def add(self, name, dtype, shape, data):
        self.list.append((name, dtype, shape, data))

    def bf16(self, name, *shape, deviation=None):
        n = 1
        for s in shape:
            n *= s
        d = deviation if deviation is not None else shape[-1] ** -.5
        self.add(name, 'BF16', shape, lambda: self.v.normal(n, d))

    def ones(self, name, n):
        self.add(name, 'BF16', (n,), lambda: [struct.pack('<H', 0x3f80) * n])

    def f32(self, name, shape, values):
        self.add(name, 'F32', shape, lambda: [floats(values())])

    def fp8(self, name, n, k, rows=False):
        blocks = (n if rows else -(-n // 32), -(-k // 32))
        self.add(name + '.weight', 'F8_E4M3', (n, k),
                 lambda: self.v.translated(n * k, FP8_TABLE))
        self.add(name + '.scale', 'F8_E8M0', blocks,
                 lambda: self.v.scales(blocks[0] * blocks[1], k, 6))

    def fp4(self, name, n, k):
        self.add(name + '.weight', 'I8', (n, k // 2),
                 lambda: self.v.translated(n * k // 2, FP4_TABLE))
        self.add(name + '.scale', 'F8_E8M0', (n, k // 32),
                 lambda: self.v.scales(n * k // 32, k, 1))

    def hyper(self, prefix, part, layer):
        c, m = self.c, self.c['hc_mult']
        n = (2 + m) * m
        base = [3.0 if i == layer % m else -3.0 for i in range(m)]
        base += [0.0] * m
        base += [3.0 if i == j else -3.0 for i in range(m) for j in range(m)]
        self.ones(prefix + part + '_norm.weight', c['hidden_size'])
        self.f32(prefix + 'hc_' + part + '_fn', (n, m * c['hidden_size']),
                 lambda: [self.v.rnd.gauss(0, .02)
                          for _ in range(n * m * c['hidden_size'])])
        self.f32(prefix + 'hc_' + part + '_base', (n,), lambda: base)
        self.f32(prefix + 'hc_' + part + '_scale', (3,), lambda: [.01] * 3)

    def attention(self, prefix):
        c, p = self.c, prefix + 'attn.'
        d, heads = c['head_dim'], c['num_attention_heads']
        dim, rank = c['hidden_size'], c['q_lora_rank']
        out = c['o_groups'] * c['o_lora_rank']
        self.fp8(p + 'wq_a', rank, dim)
        self.ones(p + 'q_norm.weight', rank)
        self.fp8(p + 'wq_b', heads * d, rank)
        self.fp8(p + 'wkv', d, dim)
        self.ones(p + 'kv_norm.weight', d)
        self.f32(p + 'attn_sink', (heads,), lambda: [0.0] * heads)
        self.fp8(p + 'wo_a', out, heads // c['o_groups'] * d)
        self.fp8(p + 'wo_b', dim, out)

    def compressor(self, prefix, layer):
        c, p = self.c, prefix + 'attn.'
        d, dim, key = c['head_dim'], c['hidden_size'], c['index_head_dim']
        if layer in c['kv_source_layer_ids']:
            self.bf16(p + 'compressor.wkv.weight', d, dim)
            if c['compress_ratios'][layer] == 2:
                self.bf16(p + 'compressor.wgate.weight', d, dim)
            self.ones(p + 'compressor.norm.weight', d)
            self.bf16(p + 'indexer.wk.weight', key, d)
            self.ones(p + 'indexer.k_norm.weight', key)
        if layer in c['index_source_layer_ids']:
            self.fp8(p + 'indexer.wq_b', c['index_n_heads'] * key,
                     c['q_lora_rank'])
            self.bf16(p + 'indexer.weights_proj.weight', c['index_n_heads'],
                      dim)

    def moe(self, prefix, n):
        c, p = self.c, prefix + 'ffn.'
        dim, wide = c['hidden_size'], c['moe_intermediate_size']
        shared = wide * c['n_shared_experts']
        self.bf16(p + 'gate.weight', n, dim)
        self.f32(p + 'gate.bias', (n,), lambda: [0.0] * n)
        self.f32(p + 'gate.bias_vl', (n,), lambda: [0.0] * n)
        for w in ('w1', 'w3'):
            self.fp8(p + 'shared_experts.' + w, shared, dim)
        self.fp8(p + 'shared_experts.w2', dim, shared)
        for e in range(n):
            for w in ('w1', 'w3'):
                self.fp4('%sexperts.%d.%s' % (p, e, w), wide, dim)
            self.fp4('%sexperts.%d.w2' % (p, e), dim, wide)

    def engram(self, prefix, rows):
        c, p = self.c, prefix + 'engram.'
        dim, m = c['hidden_size'], c['hc_mult']
        wide = ((c['engram_max_ngram_size'] - 1) * c['engram_n_heads']
                * c['engram_head_dim'])
        self.fp8(p + 'embed', rows, c['engram_head_dim'], rows=True)
        self.fp8(p + 'wkv', (m + 1) * dim, wide)
        self.bf16(p + 'q_weight', m, dim, deviation=1.0)
        self.bf16(p + 'k_weight', m, dim, deviation=1.0)

    def draft(self):
        c, n = self.c, self.c['num_nextn_predict_layers']
        dim, rank = c['hidden_size'], c['dspark_markov_rank']
        for i in range(n):
            p = 'mtp.%d.' % i
            self.hyper(p, 'attn', i)
            self.hyper(p, 'ffn', i)
            self.attention(p)
            self.moe(p, c['dspark_n_routed_experts'])
        self.fp8('mtp.0.main_proj', dim,
                 len(c['dspark_target_layer_ids']) * dim)
        self.ones('mtp.0.main_norm.weight', dim)
        p = 'mtp.%d.' % (n - 1)
        self.ones(p + 'norm.weight', dim)
        self.bf16(p + 'markov_head.embed.weight', c['vocab_size'], rank)
        self.bf16(p + 'markov_head.head.weight', c['vocab_size'], rank)
        self.bf16(p + 'confidence_head.proj.weight', 1, dim + rank)

    def vision(self, v):
        """The tower of a vision_config."""
        dim, d, wide = (self.c['hidden_size'], v['hidden_size'],
                        v['intermediate_size'])
        for name in ('start', 'end', 'newline'):
            self.ones('image_' + name, dim)
        p = 'vision.'
        self.bf16(p + 'patch_embed.proj.weight', d, 3 * v['patch_size'] ** 2)
        self.ones(p + 'patch_embed.proj.bias', d)
        for i in range(v['num_hidden_layers']):
            p = 'vision.blocks.%d.' % i
            for name in ('norm1.weight', 'norm2.weight', 'attn.wo.bias'):
                self.ones(p + name, d)
            self.bf16(p + 'attn.wqkv.weight', 3 * d, d)
            self.ones(p + 'attn.wqkv.bias', 3 * d)
            self.bf16(p + 'attn.wo.weight', d, d)
            self.bf16(p + 'mlp.w1.weight', 2 * wide, d)
            self.bf16(p + 'mlp.w2.weight', d, wide)
        self.ones('vision.norm.weight', d)
        self.bf16('aligner.w1.weight', dim, d * v['downsample_ratio'] ** 2)
        self.bf16('aligner.w2.weight', dim, dim)
        self.ones('aligner.w1.bias', dim)
        self.ones('aligner.w2.bias', dim)

    def all(self):
        c = self.c
        self.bf16('embed.weight', c['vocab_size'], c['hidden_size'],
                  deviation=1.0)
        self.ones('norm.weight', c['hidden_size'])
        self.bf16('head.weight', c['vocab_size'], c['hidden_size'])
        tables = dict(zip(c['engram_layer_ids'], engram_rows(c)))
        for l in range(c['num_hidden_layers']):
            p = 'layers.%d.' % l
            self.hyper(p, 'attn', l)
            self.hyper(p, 'ffn', l)
            self.attention(p)
            self.compressor(p, l)
            self.moe(p, c['n_routed_experts'])
            if l in tables:
                self.engram(p, tables[l])
        if c['num_nextn_predict_layers'] > 0:
            self.draft()
        return self.list


def engram_rows(c):
    """Rows of each Engram layer: the sums of its primes."""
    taken, sums = set(), []
    for _ in c['engram_layer_ids']:
        total = 0
        for _ in range(2, c['engram_max_ngram_size'] + 1):
            prime = c['engram_vocab_size'] - 1
            for _ in range(c['engram_n_heads']):
                prime += 1
                while prime in taken or any(
                        prime % d == 0
                        for d in range(2, int(prime ** .5) + 1)):
                    prime += 1
                taken.add(prime)
                total += prime
        sums.append(total)
    return sums


# -- files -------------------------------------------------------------------

SIZES = {'BF16': 2, 'F32': 4, 'F8_E4M3': 1, 'F8_E8M0': 1, 'I8': 1}


def count(shape):
    n = 1
    for s in shape:
        n *= s
    return n


def write(path, tensors, hollow):
    """One file; bytes of its tensors."""
    header, at = {}, 0
    for name, dtype, shape, _ in tensors:
        end = at + count(shape) * SIZES[dtype]
        header[name] = {'dtype': dtype, 'shape': list(shape),
                        'data_offsets': [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 64)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text)
        if hollow:
            f.truncate(8 + len(text) + at)
            f.seek(0, os.SEEK_END)
        for _, _, _, data in () if hollow else tensors:
            for chunk in data():
                f.write(chunk)
        if f.tell() != 8 + len(text) + at:
            sys.exit('make_v41: tensors are not what their shapes say')
    return at


def split(tensors, n_files):
    """Lists of tensors by name of their file, at most n_files of about the
    same size."""
    if n_files == 1:
        return {'model.safetensors': tensors}
    total = sum(count(shape) * SIZES[dtype] for _, dtype, shape, _ in tensors)
    lists, room = [], 0
    for t in tensors:
        if room <= 0:
            lists.append([])
            room = -(-total // n_files)
        lists[-1].append(t)
        room -= count(t[2]) * SIZES[t[1]]
    return {'model-%05d-of-%05d.safetensors' % (i + 1, len(lists)): part
            for i, part in enumerate(lists)}


def read_config(preset):
    if preset == 'hollow':
        with open(os.path.join(BASE, '..', 'v41-flash-config.json')) as f:
            return json.load(f)
    with open(os.path.join(BASE, 'config.json')) as f:
        conf = json.load(f)
    conf.pop('vision_config', None)
    conf['text_config'].update(PRESETS[preset])
    return conf


def copy_tokenizer(preset, out):
    shutil.copyfile(os.path.join(BASE, 'tokenizer_config.json'),
                    os.path.join(out, 'tokenizer_config.json'))
    if preset != 'hollow':
        shutil.copyfile(os.path.join(BASE, 'tokenizer.json'),
                        os.path.join(out, 'tokenizer.json'))
        return
    with gzip.open(os.path.join(BASE, '..', 'tokenizer', 'deepseek',
                                'tokenizer.json.gz')) as f, \
            open(os.path.join(out, 'tokenizer.json'), 'wb') as g:
        shutil.copyfileobj(f, g)


def sizes(tensors, c):
    """Parameters in all, those that a token's forward pass multiplies with,
    and the bytes of these."""
    total = active = active_bytes = 0
    for name, dtype, shape, _ in tensors:
        n = count(shape) * {'I8': 2, 'F8_E8M0': 0}.get(dtype, 1)
        total += n
        if name.startswith('mtp.') or 'embed' in name:
            continue
        share = (c['num_experts_per_tok'] / c['n_routed_experts']
                 if '.experts.' in name else 1)
        active += n * share
        active_bytes += count(shape) * SIZES[dtype] * share
    return total, active, active_bytes


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in PRESETS:
        sys.exit(__doc__)
    preset, out = sys.argv[1:3]
    hollow = preset == 'hollow'
    conf = read_config(preset)
    c = conf['text_config']
    for arg in sys.argv[3:]:
        key, value = arg.split('=', 1)
        c[key] = json.loads(value)
    c['engram_num_embeddings'] = engram_rows(c)

    made = Tensors(c, Values(preset))
    if 'vision_config' in conf:
        made.vision(conf['vision_config'])
    tensors = made.all()
    os.makedirs(out, exist_ok=True)
    files = split(tensors, 48 if hollow else 1)
    size = sum(write(os.path.join(out, name), part, hollow)
               for name, part in files.items())
    with open(os.path.join(out, 'model.safetensors.index.json'), 'w') as f:
        json.dump({'metadata': {'total_size': size},
                   'weight_map': {t[0]: name for name, part in files.items()
                                  for t in part}}, f)
    with open(os.path.join(out, 'config.json'), 'w') as f:
        json.dump(conf, f, indent=1)
    copy_tokenizer(preset, out)

    total, active, active_bytes = sizes(tensors, c)
    print(json.dumps({'tensors': len(tensors), 'bytes': size,
                      'parameters': total, 'active': round(active),
                      'active_bytes': round(active_bytes)}))


if __name__ == '__main__':
    main()
