import io

import pytest
from rich.console import Console
from warmroute_loadtest.chats import conversations, system_prompts
from warmroute_loadtest.percentile import percentile
from warmroute_loadtest.play import Turn
from warmroute_loadtest.scoreboard import print_scoreboard, summary


def turn(worker: str, ttft: float, prompt: int, cached: int) -> Turn:
    return Turn(0, worker, ttft, prompt, cached, 1)


def test_the_hit_rate_is_weighed_by_tokens() -> None:
    figures = summary([turn("a", 1.0, 100, 90), turn("a", 3.0, 300, 0)])
    assert figures == {"hit_rate": 0.225, "ttft_mean": 2.0, "ttft_p95": 3.0, "requests": 2}


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (19, 19), (20, 19), (40, 38), (100, 95)])
def test_the_percentile_is_of_the_nearest_rank(count: int, rank: int) -> None:
    assert percentile([float(value) for value in range(1, count + 1)], 95) == rank


def test_the_table_shows_each_worker_the_total_and_the_ratio() -> None:
    results = {
        "round_robin": [turn("http://a", 1.0, 100, 20), turn("http://b", 3.0, 100, 20)],
        "cache_aware": [turn("http://a", 0.5, 100, 60), turn("http://a", 0.5, 100, 60)],
    }
    out = io.StringIO()
    print_scoreboard(Console(file=out, width=100), results, ["http://a", "http://b"])
    rows = [line.replace("│", " ").split() for line in out.getvalue().splitlines()]
    assert ["round_robin", "worker", "2", "1", "20.0%", "3.00", "s", "3.00", "s"] in rows
    assert ["cache_aware", "all", "2", "60.0%", "0.50", "s", "0.50", "s"] in rows
    assert ["ratio", "3.00", "×", "0.25", "×", "0.17", "×"] in rows


def test_conversations_share_their_system_prompt_and_nothing_else() -> None:
    prompts = system_prompts(3)
    chats = conversations(prompts, per_prompt=2, turns=2)
    assert len(chats) == 6
    for chat in chats:
        system, question = chat.ask()
        assert system == {"role": "system", "content": prompts[chat.house]}
        chat.answered("yes")
        assert [message["role"] for message in chat.ask()] == ["system", "user", "assistant", "user"]
        assert chat.questions == []
        assert question["role"] == "user"
    assert len({chat.messages[1]["content"] for chat in chats}) == 6
