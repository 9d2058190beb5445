from collections import Counter
from itertools import pairwise

import pytest
from warmroute_loadtest.traces import Trace, TraceError, TraceRequest, load_trace
from warmroute_loadtest.traces.synthetic import (
    WORKLOADS,
    few_shot,
    generated_shared_prefix,
    multi_turn,
    prefix_repetition,
    rag,
    zipf,
)

NAMES = [
    "multi_turn",
    "shared_prompt",
    "rag",
    "few_shot",
    "unique",
    "zipf",
    "generated_shared_prefix",
    "prefix_repetition",
]


def first_blocks(trace: Trace) -> Counter[int]:
    return Counter(request.block_ids[0] for request in trace.requests)


def common(one: TraceRequest, other: TraceRequest) -> int:
    """Leading blocks that two prompts share."""
    shared = 0
    for mine, theirs in zip(one.block_ids, other.block_ids, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def test_the_registry() -> None:
    assert list(WORKLOADS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_keeps_the_promises_of_a_trace(name: str) -> None:
    trace = load_trace(f"synthetic:{name}")
    assert trace.requests == WORKLOADS[name]().requests
    assert trace.requests != WORKLOADS[name](seed=1).requests
    assert trace.name == f"synthetic:{name}"
    times = [request.arrival for request in trace.requests]
    assert times == sorted(times)
    assert times[0] == 0.0
    place: dict[int, int | None] = {}
    for request in trace.requests:
        assert len(request.block_ids) == request.input_tokens // trace.block_tokens
        before = None
        for block in request.block_ids:
            # An id names its whole prefix: it has one predecessor everywhere.
            assert place.setdefault(block, before) == before
            before = block


def test_a_turn_holds_the_turn_before_it() -> None:
    trace = multi_turn(sessions=20, turns=5, system_prompts=2, think_s=7.0)
    assert len(trace.requests) == 100
    assert len(first_blocks(trace)) == 2
    for number in range(20):
        chat = [request for request in trace.requests if request.session == f"chat-{number}"]
        assert len(chat) == 5
        for earlier, later in pairwise(chat):
            assert later.block_ids[: len(earlier.block_ids)] == earlier.block_ids
            assert later.input_tokens > earlier.input_tokens + earlier.output_tokens
            assert later.arrival - earlier.arrival == pytest.approx(earlier.output_tokens / 50 + 7)


def test_two_chats_share_their_system_prompt_and_no_more() -> None:
    trace = multi_turn(sessions=30, turns=3, system_prompts=2, system_tokens=1000)
    shared = {
        common(one, other) for one in trace.requests for other in trace.requests if one.session != other.session
    }
    assert shared == {0, 1000 // 64}


def test_generated_shared_prefix_has_sglangs_shape() -> None:
    trace = generated_shared_prefix()
    assert len(trace.requests) == 64 * 16
    assert {(request.input_tokens, request.output_tokens) for request in trace.requests} == {(2176, 256)}
    assert sorted(first_blocks(trace).values()) == [16] * 64
    # All but the first of each group find the system prompt.
    assert trace.ceiling == pytest.approx(15 / 16 * 2048 / 2176)


def test_prefix_repetition_has_vllms_shape() -> None:
    trace = prefix_repetition(requests=205)
    assert {(request.input_tokens, request.output_tokens) for request in trace.requests} == {(512, 128)}
    assert sorted(first_blocks(trace).values()) == [20] * 5 + [21] * 5
    shared = {common(one, other) for one in trace.requests for other in trace.requests if one is not other}
    assert shared == {0, 256 // 64}
    assert len(prefix_repetition().requests) == 1000


def test_shared_prompt_and_unique_are_the_two_ends() -> None:
    shared = load_trace("synthetic:shared_prompt?requests=300")
    assert len(first_blocks(shared)) == 1
    assert {common(shared.requests[0], other) for other in shared.requests[1:]} == {2048 // 64}
    assert load_trace("synthetic:unique?requests=300").ceiling == 0.0


def test_rag_asks_many_questions_of_few_documents() -> None:
    trace = rag(requests=400, documents=5)
    assert len(first_blocks(trace)) == 1
    assert len({request.block_ids[(256 + 4096) // 64 - 1] for request in trace.requests}) == 5
    assert {common(trace.requests[0], other) for other in trace.requests[1:]} == {256 // 64, (256 + 4096) // 64}


def test_fewer_shots_are_a_prefix_of_more() -> None:
    trace = few_shot(requests=300, tasks=3, shots=4, shot_tokens=128)
    assert len(first_blocks(trace)) == 3
    shared = {common(one, other) for one in trace.requests for other in trace.requests if one is not other}
    assert shared == {0, 2, 4, 6, 8}


def test_zipf_is_skewed_as_it_says() -> None:
    counts = [count for _, count in first_blocks(zipf(requests=5000, prefixes=10, skew=1.0)).most_common()]
    harmonic = sum(1 / rank for rank in range(1, 11))
    assert counts[0] / 5000 == pytest.approx(1 / harmonic, rel=0.1)
    assert counts[1] / 5000 == pytest.approx(1 / harmonic / 2, rel=0.2)
    flat = first_blocks(zipf(requests=5000, prefixes=10, skew=0.0)).values()
    assert max(flat) < 1.3 * min(flat)


def test_arrivals_come_at_the_rate_asked_for() -> None:
    trace = load_trace("synthetic:unique?rate=5&requests=3000")
    assert trace.requests[-1].arrival == pytest.approx(600, rel=0.1)
    assert load_trace("synthetic:unique?rate=5&requests=3000", limit=7).requests == trace.requests[:7]


def test_parameters_are_given_as_in_a_url() -> None:
    trace = load_trace("synthetic:multi_turn?rate=5&sessions=20&turns=2&question_tokens=0&think_s=0.5")
    assert trace.requests == multi_turn(rate=5.0, sessions=20, turns=2, question_tokens=0, think_s=0.5).requests
    assert trace.name == "synthetic:multi_turn?rate=5&sessions=20&turns=2&question_tokens=0&think_s=0.5"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "unknown workload 'nothing': use multi_turn, shared_prompt"),
        ("rag?pages=3", "rag has no parameter 'pages': use requests, documents"),
        ("rag?documents=few", "rag: documents must be a number, not 'few'"),
        ("rag?documents=", "rag: documents must be a number, not ''"),
        ("rag?documents=0", "rag: documents must be from 1 to 10,000,000, not 0"),
        ("rag?rate=0", "rag: rate must be from 1e-06 to 10,000,000, not 0"),
        ("rag?rate=nan", "rag: rate must be from 1e-06 to 10,000,000, not nan"),
        ("zipf?skew=-1", "zipf: skew must be from 0 to 10,000,000, not -1"),
    ],
)
def test_what_cannot_be_made_says_why(name: str, message: str) -> None:
    with pytest.raises(TraceError) as raised:
        load_trace(f"synthetic:{name}")
    assert message in str(raised.value)
