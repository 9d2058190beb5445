import pytest
import uvloop
from warmroute_loadtest.path_bench import REQUESTS, main, measure
from warmroute_loadtest.race.throughput import Case


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case.name)
def test_every_case_runs_through_the_whole_path(case: Case) -> None:
    assert uvloop.run(measure(case, rounds=1, requests=64)) > 0


def test_no_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--rounds", "0"])
    assert (end.value.code, capsys.readouterr().err) == (2, "path_bench: argument --rounds: must be at least 1\n")
