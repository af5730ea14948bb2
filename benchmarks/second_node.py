"""What is sent between two hosts, and whether the second one is worth it: networks and levers.

    PYTHONPATH=tests python benchmarks/second_node.py               # every network, every lever
    PYTHONPATH=tests python benchmarks/second_node.py --networks 500mbit --levers dense sparse bf16
    PYTHONPATH=tests python benchmarks/second_node.py --training    # loss and gradient, 50 steps
    PYTHONPATH=tests python benchmarks/second_node.py --one-host    # two ranks that share a memory

Two hosts of one CPU each (network namespaces; ``tests/nodes/install.py`` says what is needed, and
that it needs root) train a BERT of 4 layers, 11 million parameters, by DistributedDataParallel. The
levers take turns of three steps, each in a model of its own. *step*: seconds, the median of the
rounds. *one node*: how many times as fast as one of the hosts alone with the whole batch, the
median of the rounds' ratios. *MB*: that a host sends in a step, as its interface counts it.

It wants a quiet machine with two cores or more: the hosts share its memory, and what else computes
takes a CPU from one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

NETWORKS = ("none", "10gbit", "1gbit", "500mbit")
"""In the words of tc; "none" is a network that nothing slows down."""

LEVERS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "dense": ({}, {}),
    "bucket_cap_mb=5": ({"bucket_cap_mb": 5}, {}),
    "bucket_cap_mb=100": ({"bucket_cap_mb": 100}, {}),
    "bucket_view": ({"gradient_as_bucket_view": True}, {}),
    "static_graph": ({"static_graph": True}, {}),
    "find_unused": ({"find_unused_parameters": True}, {}),
    "sparse": ({}, {"gradients": "sparse"}),
    "bf16": ({}, {"gradient_precision": "bf16"}),
    "sparse bf16": ({}, {"gradients": "sparse", "gradient_precision": "bf16"}),
    "4 batches": ({}, {}),
    "4 batches, synced once": ({}, {}),
}
"""Arguments of DistributedDataParallel, and settings of
``cputune.inside.applying.gradient_traffic``."""

ALONE = "one node"
STEPS = 3


class Trainee:
    """A model with one lever, and its steps."""

    def __init__(self, lever: str, samples: int, layers: int) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from transformers import BertConfig, BertForSequenceClassification

        from cputune.inside.applying.force import Force
        from cputune.inside.applying.gradient_traffic import Gradients
        from cputune.inside.applying.shared import Setting

        torch.manual_seed(0)
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
        config = BertConfig(num_hidden_layers=layers, **sizes, **still)
        self.model: Any = BertForSequenceClassification(config)
        if lever != ALONE:
            how, sent = LEVERS[lever]
            self.model = DistributedDataParallel(self.model, **how)
            if sent:
                part = Gradients(Setting(Force(torch=sent), sys.exit, lambda text: None))
                group = self.model.process_group
                self.model.register_comm_hook(group, lambda state, bucket: part.send(state, bucket))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.batches = 4 if "4 batches" in lever else 1
        self.once = "once" in lever
        ranks = torch.distributed.get_world_size()
        self.samples = samples if lever == ALONE else samples // ranks
        rank = 0 if lever == ALONE else torch.distributed.get_rank()
        self.generator = torch.Generator().manual_seed(rank)

    def step(self) -> tuple[float, float]:
        """One step of the optimizer; its loss, and the norm of its gradient."""
        import torch

        each, loss = self.samples // self.batches, torch.zeros(())
        for number in range(self.batches):
            last = number == self.batches - 1
            quiet = self.once and not last
            ids = torch.randint(1000, 30000, (each, 128), generator=self.generator)
            with self.model.no_sync() if quiet else contextlib.nullcontext():
                labels = (ids[:, 0] % 2).long()
                loss = self.model(input_ids=ids, labels=labels).loss / self.batches
                loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e9)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach()), float(norm)


def rank_main(options: argparse.Namespace) -> None:
    """One rank: it takes turns, and the first tells what it saw."""
    import torch

    os.sched_setaffinity(0, {options.rank_cpu})
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    first = torch.distributed.get_rank() == 0
    seen: dict[str, list[Any]] = {}
    trained = {lever: Trainee(lever, options.batch, options.layers) for lever in options.levers}
    if not options.training:
        trained[ALONE] = Trainee(ALONE, options.batch, options.layers)
    for _ in range(1 if options.training else options.rounds):
        for lever, trainee in trained.items():
            torch.distributed.barrier()
            if lever == ALONE and not first:
                continue
            if options.training:
                seen[lever] = [trainee.step() for _ in range(50)]
                continue
            trainee.step()
            sent, began = sent_bytes(), time.perf_counter()
            for _ in range(STEPS):
                trainee.step()
            seconds = (time.perf_counter() - began) / STEPS
            seen.setdefault(lever, []).append((seconds, (sent_bytes() - sent) / STEPS))
    if first:
        print(json.dumps(seen))
    torch.distributed.destroy_process_group()


def sent_bytes() -> int:
    """What the interface of this host has sent so far."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "eth0":
            return int(counts.split()[8])
    return 0


def started_on(hosts: Any, host: str) -> Callable[..., Any]:
    """What starts a process there; on this machine where there are no hosts."""
    if hosts is None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return lambda argv, env: subprocess.Popen(argv, env={**os.environ, **env}, **pipes)
    return lambda argv, env: hosts.start(host, argv, env=env)


def read(options: argparse.Namespace, network: str) -> dict[str, list[Any]]:
    """What the first rank saw of each lever over one network."""
    from nodes.cluster import two_hosts
    from nodes.namespaces import Odd

    cpus = sorted(os.sched_getaffinity(0))[:2]
    with contextlib.ExitStack() as held:
        hosts, names, master = None, ("here", "here"), "127.0.0.1"
        if not options.one_host:
            odd = {"alpha": Odd(cpus=(cpus[0],)), "beta": Odd(cpus=(cpus[1],))}
            hosts = held.enter_context(two_hosts(**odd))
            names, master = hosts.names, hosts.addresses["alpha"]
            for host in () if network == "none" else names:
                hosts.shape(host, network)
        started = []
        for rank, (host, cpu) in enumerate(zip(names, cpus, strict=True)):
            env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": master}
            env |= {"MASTER_PORT": "29611", "HF_HUB_OFFLINE": "1"}
            env |= {"GLOO_SOCKET_IFNAME": "lo" if options.one_host else "eth0"}
            argv = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
            argv += ["--rank-cpu", str(cpu)]
            started.append(started_on(hosts, host)(argv, env))
        told = [process.communicate() for process in started]
    if started[0].returncode:
        raise SystemExit(told[0][1])
    found: dict[str, list[Any]] = json.loads(told[0][0].splitlines()[-1])
    return found


def table(options: argparse.Namespace, network: str) -> None:
    """A row for each lever."""
    seen = read(options, network)
    print(f"\n{'one host' if options.one_host else network}\n{'':24} step   one node    MB")
    alone = [seconds for seconds, _ in seen[ALONE]]
    for lever, turns in seen.items():
        seconds = [one for one, _ in turns]
        ratio = median(a / b for a, b in zip(alone, seconds, strict=True))
        sent = median(one for _, one in turns) / 1e6
        print(f"{lever:24} {median(seconds):.3f}  {ratio:7.2f}  {sent:7.1f}", flush=True)


def training(options: argparse.Namespace) -> None:
    """Loss and norm of the gradient of each lever, beside those of gradients sent in fp32."""
    seen = read(options, "none")
    print(f"{'step':>4}  " + "  ".join(f"{lever:>22}" for lever in seen))
    for number in (*range(0, 49, 7), 49):
        row = (f"{loss:12.6f} {norm:9.5f}" for loss, norm in (one[number] for one in seen.values()))
        print(f"{number + 1:>4}  " + "  ".join(row))
    first, *others = seen
    for lever in others:
        pairs = list(zip(seen[first], seen[lever], strict=True))
        loss = max(abs(b[0] / a[0] - 1) for a, b in pairs)
        norm = max(abs(b[1] / a[1] - 1) for a, b in pairs)
        print(f"{lever}: loss off by {loss:.1e} at most, gradient by {norm:.1e}")


def main(argv: Sequence[str] | None = None) -> None:
    """A table for each network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--levers", nargs="*", default=list(LEVERS), choices=list(LEVERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=16, help="samples of a step, of both hosts")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--training", action="store_true", help="loss and gradient over 50 steps")
    parser.add_argument("--one-host", action="store_true", help="two ranks of one host")
    parser.add_argument("--rank-cpu", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.rank_cpu is not None:
        rank_main(options)
    elif options.training:
        training(options)
    else:
        for network in ("none",) if options.one_host else options.networks:
            table(options, network)


if __name__ == "__main__":
    main()
