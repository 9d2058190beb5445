from ..backend import CommonAttentionMetadata


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata, decode_threshold: int = 1
) -> tuple[int, int, int, int]:
    """Sequences and tokens: (decodes, prefills, tokens of decodes, tokens of prefills). Decodes come first."""
    counts = common_attn_metadata.query_start_loc_cpu.diff().tolist()
    decodes = next((index for index, count in enumerate(counts) if count > decode_threshold), len(counts))
    tokens = sum(counts[:decodes])
    return decodes, len(counts) - decodes, tokens, sum(counts) - tokens
