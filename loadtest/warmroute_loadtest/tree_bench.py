"""`make bench-tree`: what a decision takes on a full prefix tree, and what the tree weighs.

A decision is all between a request's body and its worker: reading the prompt, hashing its blocks, `Routing.place`
with `cache_aware` over 64 workers, on a tree that has to evict for each new block. The prompts partly hit: each
continues a chat that the tree knows. Memory is what the process grows by, each case in a process of its own.
"""

import importlib
import multiprocessing
import random
import resource
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import orjson
from rich.console import Console
from rich.table import Table
from warmroute_router.blocks import BLOCK_BYTES, BLOCK_TOKENS, PromptBlocks
from warmroute_router.config import WorkerSpec
from warmroute_router.fleet import Fleet, State
from warmroute_router.policies import POLICIES
from warmroute_router.prompt import read_prompt
from warmroute_router.routing import Routing
from warmroute_router.tree import MAX_TREE_BLOCKS, PrefixTree

WORKERS = 64
WORKER_BLOCKS = 2 * MAX_TREE_BLOCKS // WORKERS
PATH = "/v1/chat/completions"
HIT = 0.75
"""Of a measured prompt, the part that the chat had in its turn before."""
SYSTEM_PROMPT = "You are an assistant. " * 50
"""All workers hold it."""
TARGET_MB = 150


class Case(NamedTuple):
    name: str
    body_bytes: int
    runs: int
    target: str


class Weight(NamedTuple):
    blocks: int
    nodes: int
    entries: int
    tree: int
    """Bytes, and so is the next."""
    process: int


CASES = (
    Case("8 KB", 8_000, 3_000, "< 60 µs"),
    Case("40 KB", 40_000, 2_000, ""),
    Case("400 KB", 400_000, 300, "< 1,000 µs"),
)


def main() -> int:
    weights = {name: _in_new_process(name) for name in FILLS}
    tree = _mix(routing := _routing())
    times = {case: _decide(routing, case) for case in CASES}
    _print_times(times, f"{tree.blocks:,} blocks in {tree.nodes:,} nodes, {WORKERS} workers")
    _print_weights(weights)
    return 0


def _print_times(times: dict[Case, list[float]], filled: str) -> None:
    table = Table(title=f"one decision, {filled}")
    for heading in ("body", "median", "p99", "target of the median"):
        table.add_column(heading, justify="left" if heading == "body" else "right")
    for case, seconds in times.items():
        median, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[-1]
        table.add_row(case.name, f"{median * 1e6:,.0f} µs", f"{p99 * 1e6:,.0f} µs", case.target)
    Console().print(table)


def _print_weights(weights: dict[str, Weight]) -> None:
    table = Table(title=f"memory, {WORKERS} workers; target: process < {TARGET_MB} MB")
    for heading in ("what came", "blocks", "nodes", "entries", "bytes/block", "tree", "process"):
        table.add_column(heading, justify="left" if heading == "what came" else "right")
    for name, weight in weights.items():
        counts = (f"{count:,}" for count in weight[:3])
        sizes = (f"{size / 1e6:.0f} MB" for size in weight[3:])
        table.add_row(name, *counts, f"{weight.tree / weight.blocks:.1f}", *sizes)
    Console().print(table)


def _in_new_process(name: str) -> Weight:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_weigh, name).result()


def _weigh(name: str) -> Weight:
    importlib.import_module("warmroute_router.serve")  # all that a router has in memory beside its tree
    before = _peak()
    tree = FILLS[name]()
    return Weight(tree.blocks, tree.nodes, tree.entries, _peak() - before, _peak())


def _peak() -> int:
    """Bytes resident at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _routing() -> Routing:
    fleet = Fleet()
    for index in range(WORKERS):
        worker = fleet.add(WorkerSpec(f"http://worker-{index}:8000"))
        worker.state = State.READY
        worker.retention.start_at(WORKER_BLOCKS)
    return Routing(fleet, PrefixTree(MAX_TREE_BLOCKS), "cache_aware", POLICIES["cache_aware"]())


def _decide(routing: Routing, case: Case) -> list[float]:
    """Seconds of each decision."""
    system = routing.blocks_of(read_prompt(PATH, _body(""))).hashes
    for worker in routing.fleet.workers:
        routing.tree.insert(routing.tree.find(system), worker.index, worker.retention.clock)
    filler = "some words of a prompt " * (case.body_bytes // 23)
    times = []
    for number in range(case.runs):
        text = f"{case.name}, chat {number}: {filler}"[: case.body_bytes - len(SYSTEM_PROMPT)]
        _place(routing, _body(text[: round(len(text) * HIT)]))
        body = _body(text)
        started = time.perf_counter()
        placement = routing.place(routing.blocks_of(read_prompt(PATH, body)))
        times.append(time.perf_counter() - started)
        assert placement is not None
        assert 0 < placement.available < placement.prompt.tokens
        placement.release()
    return times


def _body(text: str) -> bytes:
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": text}]
    return orjson.dumps({"model": "mock", "stream": True, "messages": messages})


def _place(routing: Routing, body: bytes) -> None:
    placement = routing.place(routing.blocks_of(read_prompt(PATH, body)))
    assert placement is not None
    placement.release()


def _mix(routing: Routing) -> PrefixTree:
    """Prompts of 40 KB behind one of 16 system prompts of 10 KB, and chats that grow from 2 to 40 KB."""
    rng = random.Random(1)
    systems = [_blocks(rng, 10_000) for _ in range(16)]
    chats: list[array[int]] = []
    while routing.tree.evicted < MAX_TREE_BLOCKS // 10:
        _place_blocks(routing, rng.choice(systems) + _blocks(rng, 30_000))
        for _ in range(2):
            if len(chats) < 100:
                chats.append(rng.choice(systems)[:8])
            index = rng.randrange(len(chats))
            chats[index] = chats[index] + _blocks(rng, 2_000)
            _place_blocks(routing, chats[index])
            if len(chats[index]) * BLOCK_BYTES > 40_000:
                del chats[index]
    return routing.tree


def _place_blocks(routing: Routing, hashes: "array[int]") -> None:
    placement = routing.place(PromptBlocks(hashes, hashes[-1], len(hashes) * BLOCK_TOKENS))
    assert placement is not None
    placement.release()


def _blocks(rng: random.Random, size: int) -> "array[int]":
    """Hashes of a text of this many bytes."""
    return array("Q", rng.randbytes(size // BLOCK_BYTES * 8))


def _short(blocks: int) -> PrefixTree:
    """Prompts of so many blocks that share nothing, for longer than there is room."""
    tree, rng = PrefixTree(MAX_TREE_BLOCKS), random.Random(2)
    for number in range(200_000):
        hashes = _blocks(rng, blocks * BLOCK_BYTES)
        tree.insert(tree.find(hashes), number % WORKERS, number)
    return tree


def _everywhere() -> PrefixTree:
    """Prompts that all 64 workers were sent, each behind one of 100 prefixes of 25 KB."""
    tree, rng = PrefixTree(MAX_TREE_BLOCKS), random.Random(3)
    prefixes = [_blocks(rng, 25_000) for _ in range(100)]
    for number in range(5_000):
        hashes = rng.choice(prefixes) + _blocks(rng, 75_000)
        for worker in range(WORKERS):
            tree.insert(tree.find(hashes), worker, number * WORKERS + worker)
    return tree


FILLS: dict[str, Callable[[], PrefixTree]] = {
    "40 KB and chats": lambda: _mix(_routing()),
    "one block each": lambda: _short(1),
    "8 blocks each": lambda: _short(8),
    "all to everyone": _everywhere,
}


if __name__ == "__main__":
    sys.exit(main())
