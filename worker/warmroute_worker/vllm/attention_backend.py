"""Attention in vLLM by this package's kernels: `vllm serve --attention-backend CUSTOM`. Written for vLLM 0.32.

vLLM's cache of a layer is [blocks, kv_heads, block_size, 2 * head_dim], in any order of strides, with K and V beside
each other in the last dim: ours are views of it. Its slots, tables of blocks and starts of queries are as ours.
Attention is no part of vLLM's CUDA graphs here: it runs between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.utils import split_decodes_and_prefills
from vllm.version import __version__
from warmroute_kernels.extend import ExtendPlan, extend, plan_extend
from warmroute_kernels.kv import PagedKV
from warmroute_kernels.paged_decode import DecodePlan, paged_decode, plan_decode
from warmroute_kernels.store_kv import store_kv

VLLM = "0.32"
if __version__.split(".")[:2] != VLLM.split("."):
    raise ImportError(f"warmroute's attention backend is written for vLLM {VLLM}: this is {__version__}")


@dataclass
class Decodes:
    """Sequences with one new token each."""

    plan: DecodePlan
    page_table: Tensor
    lengths: Tensor


@dataclass
class Extends:
    """Sequences with more, behind the decodes."""

    plan: ExtendPlan
    page_table: Tensor
    prefix_lengths: Tensor
    starts: Tensor


@dataclass
class Metadata(AttentionMetadata):  # type: ignore[misc]
    """A step, the same for all layers. The rows of its first `decoded` tokens are decodes, up to `tokens` extends."""

    decoded: int
    tokens: int
    decodes: Decodes | None
    extends: Extends | None


class MetadataBuilder(AttentionMetadataBuilder[Metadata]):  # type: ignore[misc]
    reorder_batch_threshold = 1  # decodes come first

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        heads = vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)
        self._shape = (heads, kv_cache_spec.num_kv_heads, kv_cache_spec.head_size)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Metadata:
        common = common_attn_metadata
        count, _, decoded, _ = split_decodes_and_prefills(common)
        known = common.seq_lens_cpu_upper_bound
        lengths = (common.seq_lens if known is None else known).tolist()
        return Metadata(
            decoded=decoded,
            tokens=common.num_actual_tokens,
            decodes=self._decodes(common, count, lengths) if count else None,
            extends=self._extends(common, count, lengths) if count < common.num_reqs else None,
        )

    def _decodes(self, common: CommonAttentionMetadata, count: int, lengths: Sequence[int]) -> Decodes:
        lengths = lengths[:count]
        plan = plan_decode(count, *self._shape, max_length=max(lengths), lengths=lengths, device=self.device)
        return Decodes(plan, common.block_table_tensor[:count], common.seq_lens[:count])

    def _extends(self, common: CommonAttentionMetadata, first: int, lengths: Sequence[int]) -> Extends:
        known = common.query_start_loc_cpu[first:].tolist()
        ends = [end - known[0] for end in known]
        prefixes = [
            length - (end - start) for length, start, end in zip(lengths[first:], ends, ends[1:], strict=False)
        ]
        starts = common.query_start_loc[first:] - common.query_start_loc[first]
        return Extends(
            plan_extend(ends, prefixes, *self._shape, device=self.device),
            common.block_table_tensor[first:],
            common.seq_lens[first:] - starts.diff(),
            starts,
        )


class WarmrouteBackend(AttentionBackend):  # type: ignore[misc]
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto"]  # vLLM's FP8 has one scale for all tokens, ours not
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type["WarmrouteAttention"]:
        return WarmrouteAttention

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [64, 96, 128, 256]

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major >= 8)


class WarmrouteAttention(AttentionImpl[Metadata]):  # type: ignore[misc]
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        """Raises NotImplementedError on what the kernels lack and a backend is not asked about."""
        if alibi_slopes is not None or kv_sharing_target_layer_name is not None:
            raise NotImplementedError(
                "warmroute's attention backend has neither ALiBi nor layers that share their cache"
            )
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_size = head_size
        self.scale = scale
        self.kv_cache_dtype = kv_cache_dtype
        self._seen: dict[str, Any] = {
            "scale": scale,
            "window": sliding_window,
            "soft_cap": logits_soft_cap or None,
        }

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        tokens = slot_mapping.shape[0]
        store_kv(key[:tokens], value[:tokens], self._paged(kv_cache), slot_mapping)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Metadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """query and output: [tokens, heads, head_dim], of which those after the metadata's tokens are padding."""
        if attn_metadata is None:  # vLLM measures its memory
            return output.fill_(0)
        kv, step = self._paged(kv_cache), attn_metadata
        decoded, new = slice(step.decoded), slice(step.decoded, step.tokens)
        if step.decodes is not None:
            plan, table, lengths = step.decodes.plan, step.decodes.page_table, step.decodes.lengths
            paged_decode(query[decoded], kv, table, lengths, plan=plan, out=output[decoded], **self._seen)
        if step.extends is not None:
            of = step.extends
            extend(
                query[new],
                key[new],
                value[new],
                kv,
                of.page_table,
                of.prefix_lengths,
                of.starts,
                plan=of.plan,
                out=output[new],
                **self._seen,
            )
        return output

    def _paged(self, kv_cache: Tensor) -> PagedKV:
        """[blocks, kv_heads, block_size, 2 * head_dim] as pages of K and of V."""
        pages = kv_cache.transpose(1, 2)
        return PagedKV(pages[..., : self.head_size], pages[..., self.head_size :])
