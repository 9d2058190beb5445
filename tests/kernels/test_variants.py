"""Triton compiles a kernel anew for integers of another kind (1, divisible by 16) and pointers of another alignment.

Nothing that changes from step to step may be such: requests would wait for the compiler. This binds what the host
functions pass over many random steps with Triton's own binder, as on an H100. A process of its own does it, where
Triton is no interpreter.
"""

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

STEPS = 300
HEADS, KV_HEADS, DIM = 32, 8, 128


def test_steps_of_serving_are_one_variant_of_each_kernel() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(
        (
            "extend_kernel",
            "merge_states_kernel",
            "paged_decode_kernel",
            "shared_part_kernel",
            "store_kv_kernel",
        ),
        1,
    )


def variants() -> dict[str, int]:
    """How many of each kernel."""
    import warmroute_kernels.cascade.kernel
    import warmroute_kernels.extend.kernel
    import warmroute_kernels.merge.kernel
    import warmroute_kernels.paged_decode.kernel
    import warmroute_kernels.store_kv.kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(GPUTarget("cuda", 90, 32))
    seen: dict[str, set[str]] = defaultdict(set)

    class Bound:
        """Stands in for a kernel: notes what would be compiled. What is constant by its nature is not looked at."""

        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel
            self.bind = create_function_from_signature(kernel.signature, kernel.params, backend)

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Any, num_warps: int, num_stages: int, **constants: Any) -> None:
                _, kinds, _ = self.bind(*arguments, **constants)
                varying = [kind for at, kind in zip(self.kernel.params, kinds, strict=True) if not at.is_constexpr]
                seen[self.kernel.__name__].add(str(varying))

            return launch

    kernels = (
        (warmroute_kernels.cascade.kernel, "shared_part_kernel"),
        (warmroute_kernels.extend.kernel, "extend_kernel"),
        (warmroute_kernels.merge.kernel, "merge_states_kernel"),
        (warmroute_kernels.paged_decode.kernel, "paged_decode_kernel"),
        (warmroute_kernels.store_kv.kernel, "store_kv_kernel"),
    )
    for module, name in kernels:
        setattr(module, name, Bound(getattr(module, name)))
    with (
        patch("warmroute_kernels.paged_decode.plan.multiprocessors", lambda _: 132),
        patch("warmroute_kernels.cascade.plan.multiprocessors", lambda _: 132),
    ):
        for _ in range(STEPS):
            _step()
    return {name: len(kinds) for name, kinds in seen.items()}


def _step() -> None:
    """One of everything, with tensors that are parts of larger ones as a batch's are."""
    from warmroute_kernels.cascade import SharedPrefix, cascade, plan_groups
    from warmroute_kernels.extend import extend, plan_extend
    from warmroute_kernels.kv import PagedKV
    from warmroute_kernels.paged_decode import paged_decode, plan_decode
    from warmroute_kernels.store_kv import store_kv

    model = HEADS, KV_HEADS, DIM
    page = random.choice((1, 16))
    cache = torch.empty(64, page, KV_HEADS, DIM, dtype=torch.bfloat16)
    kv = PagedKV(cache, cache)
    batch, skipped = random.randint(1, 40), random.randint(0, 9)
    lengths = [random.randint(200, 4000) for _ in range(batch)]
    table = _ints(skipped + batch, -(-max(lengths) // page))[skipped:]
    q, k, v = (torch.empty(batch, heads, DIM, dtype=torch.bfloat16) for heads in (HEADS, KV_HEADS, KV_HEADS))
    store_kv(k, v, kv, torch.empty(skipped + batch, dtype=torch.int64)[skipped:])
    split = random.choice((None, 1024))
    plan = plan_decode(batch, *model, max_length=max(lengths), lengths=lengths, fixed_split=split, device="cpu")
    window = random.choice((None, 1, 256))
    paged_decode(q, kv, table, _ints(skipped + batch)[skipped:], plan=plan, window=window)

    counts = [random.randint(1, 50) for _ in range(batch)]
    starts = [sum(counts[:at]) for at in range(batch + 1)]
    q, k, v = (torch.empty(starts[-1], heads, DIM, dtype=torch.bfloat16) for heads in (HEADS, KV_HEADS, KV_HEADS))
    prefixes, begins = _ints(skipped + batch)[skipped:], _ints(skipped + batch + 1)[skipped:]
    extend(q, k, v, kv, table, prefixes, begins, plan=plan_extend(starts, lengths, *model, device="cpu"))

    rows = random.randint(2, 40)
    pages = random.randint(1, 2000)
    lengths = [pages * page + random.randint(1, 500) for _ in range(rows)]
    group = SharedPrefix(tuple(range(rows)), tuple(range(pages)))
    table = _ints(skipped + rows, -(-max(lengths) // page)).zero_()[skipped:]
    shared = plan_groups([group], table, lengths, *model, page_size=page, device="cpu")
    cascade(torch.empty(rows, HEADS, DIM, dtype=torch.bfloat16), kv, plan=shared)


def _ints(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32)


if __name__ == "__main__":
    random.seed(1)
    print(json.dumps(variants()))
