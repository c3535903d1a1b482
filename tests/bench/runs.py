#!/usr/bin/python3
"""Whole training runs: tokens per second of `cbk train` and `cbk generate` against the same model in PyTorch, and two ranks against one.

    runs.py CBK FOLDER [--steps 100] [--rounds 3] [--threads 1] [--only train|ranks|generate]

The model is a GPT-2 with 10.9M parameters (6 layers, width 384, 6 heads, 256 tokens, batch 8, AdamW). Everything counts that a process
of cbk does: start, data, logging, a checkpoint each 100 steps. Of PyTorch only the loops count, without its import, its data in
memory. Runs are made in turn, ratios taken round by round; the tables have medians. FOLDER gets about 300 MB.

Goals: `train` 1.2 times PyTorch's tokens per second in at most its memory, `generate` as fast as PyTorch's with a cache, two ranks on
two cores 1.6 times one.
"""
import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY, BATCH = 6, 384, 6, 256, 257, 8
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
PARAMS = f"""\
trainer:
  init:
    model_dir: run
    seed: 1
    model:
      name: gpt2
      vocab_size: {VOCABULARY}
      hidden_size: {WIDTH}
      num_hidden_layers: {LAYERS}
      num_heads: {HEADS}
      filter_size: {4 * WIDTH}
      max_position_embeddings: {LENGTH}
      share_embedding_weights: false
      dropout_rate: 0.0
      attention_dropout_rate: 0.0
    optimizer:
      AdamW: {{ learning_rate: 0.001 }}
    loop: {{ max_steps: 100 }}
    checkpoint: {{ steps: 100 }}
    logging: {{ log_steps: 10 }}
  fit:
    train_dataloader: {{ data_processor: GptHDF5MapDataProcessor, data_dir: data, batch_size: {BATCH}, shuffle: true }}
"""


def peer(what, threads, count):
    """Runs in a process of its own: seconds a step (train) or a token (generate), and the peak of memory in MB."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x, mask, kept=None):
            heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
            q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.n1(x)).split(WIDTH, 2))
            if kept is not None:
                k, v = (torch.cat([kept[name], part], 2) if name in kept else part for name, part in (("k", k), ("v", v)))
                kept.update(k=k, v=v)
            scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
            if mask is not None:
                scores = scores.masked_fill(mask, float("-inf"))
            x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.pos = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, ids, first=0, kept=None):
            x, length = self.tok(ids) + self.pos.weight[first:first + ids.shape[1]], ids.shape[1]
            mask = torch.ones(length, length).triu(1).bool() if length > 1 else None
            for i, block in enumerate(self.blocks):
                x = block(x, mask, kept and kept[i])
            return self.head(self.norm(x))

    torch.set_num_threads(threads)
    model = Gpt()
    if what == "train":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
        begin = 0.0
        for step in range(count + 2):
            if step == 2:
                begin = time.perf_counter()
            ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    else:
        with torch.no_grad():
            for one in range(2):  # the first warms up
                kept, ids = [dict(position=i) for i in range(LAYERS)], torch.tensor([[1]])
                begin = time.perf_counter()
                for position in range(count):
                    ids = model(ids, position, kept)[:, -1:].argmax(-1)
    print((time.perf_counter() - begin) / count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def timed(words, folder):
    """Seconds of a process and its peak of memory in MB."""
    begin = time.perf_counter()
    process = subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(words)} failed:\n{said.decode()}")
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def of_peer(what, threads, count):
    words = [sys.executable, os.path.realpath(__file__), "--peer", what, "--threads", str(threads), "--steps", str(count), "-", "-"]
    return map(float, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())


def train(cbk, folder, steps, words=(), threads=1):
    shutil.rmtree(os.path.join(folder, "run"), ignore_errors=True)
    whole, memory = timed([*words, cbk, "train", "params.yaml", "--max-steps", str(steps), "--threads", str(threads), "-q"], folder)
    return whole / steps, memory


def show(name, rows, goal):
    ours, theirs, ratios = ([row[i] for row in rows] for i in range(3))
    print(f"| {name} | {statistics.median(ours):.4g} | {statistics.median(theirs):.4g} "
          f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {goal} |", flush=True)


def compare(args):
    tokens = BATCH * LENGTH
    print("| job | cbk, tokens per second | beside it | ratio | goal |\n|---|---|---|---|---|")
    if args.only in (None, "train"):
        rows, peaks = [], []
        for _ in range(args.rounds):
            theirs, their_peak = of_peer("train", args.threads, max(5, args.steps // 5))
            ours, peak = train(args.cbk, args.folder, args.steps, threads=args.threads)
            rows.append((tokens / ours, tokens / theirs, theirs / ours))
            peaks.append((peak, their_peak))
        show(f"`train`, {args.threads} thread(s), beside PyTorch", rows, 1.2)
        print(f"|   memory in MB | {max(p[0] for p in peaks):.0f} | {min(p[1] for p in peaks):.0f} | | at most PyTorch's |")
    if args.only in (None, "ranks"):
        rows = []
        for _ in range(args.rounds):
            one, _ = train(args.cbk, args.folder, args.steps)
            two, _ = train(args.cbk, args.folder, args.steps, ["mpirun", "-n", "2", "--bind-to", "core"])
            rows.append((tokens / two, tokens / one, one / two))
        show("`mpirun -n 2`, beside one rank", rows, 1.6)
    if args.only in (None, "generate"):
        if not os.path.exists(os.path.join(args.folder, "run", "checkpoint_1.mdl")):
            train(args.cbk, args.folder, 1, threads=args.threads)
        rows, count = [], LENGTH - 1
        words = [args.cbk, "generate", "run/checkpoint_1.mdl", "--config", "params.yaml", "--ids", "1", "--threads", str(args.threads)]
        for _ in range(args.rounds):
            theirs, _ = of_peer("generate", args.threads, count)
            ours = timed([*words, "--max-tokens", str(count)], args.folder)[0] / count
            rows.append((1 / ours, 1 / theirs, theirs / ours))
        show(f"`generate`, {args.threads} thread(s), beside PyTorch", rows, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cbk")
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=["train", "ranks", "generate"])
    parser.add_argument("--peer", choices=["train", "generate"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        peer(args.peer, args.threads, args.steps)
        return
    args.cbk = os.path.realpath(args.cbk)
    os.makedirs(args.folder, exist_ok=True)
    with open(os.path.join(args.folder, "params.yaml"), "w", encoding="utf-8") as file:
        file.write(PARAMS)
    if not os.path.exists(os.path.join(args.folder, "data")):
        subprocess.run([args.cbk, "make-data", "-o", "data", "--max-seq-length", str(LENGTH), "-q"], cwd=args.folder, check=True)
    compare(args)


if __name__ == "__main__":
    main()
