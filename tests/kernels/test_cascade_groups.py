"""Which groups are found: against a search over every way to group a few rows."""

from array import array
from collections.abc import Sequence
from itertools import count, product

from hypothesis import given, settings
from hypothesis import strategies as st
from warmroute_kernels.cascade.groups import SharedPrefix, groups_of

Rows = list[tuple[int, ...]]

# Few pages and short rows, so that prefixes often agree.
few_rows = st.lists(st.lists(st.integers(0, 1), max_size=4).map(tuple), max_size=5)
many_rows = st.lists(st.lists(st.integers(0, 2), max_size=9).map(tuple), max_size=12)


def saved(groups: Sequence[SharedPrefix]) -> int:
    return sum((len(group.rows) - 1) * len(group.pages) for group in groups)


def most_saved(rows: Rows) -> int:
    """Each row picks a length of its own prefix; those that picked the same prefix are a group."""
    best = 0
    for lengths in product(*(range(len(row) + 1) for row in rows)):
        picked = [row[:length] for row, length in zip(rows, lengths, strict=True)]
        best = max(best, sum(len(prefix) * (picked.count(prefix) - 1) for prefix in set(picked)))
    return best


@settings(max_examples=150)
@given(few_rows)
def test_no_grouping_saves_more(rows: Rows) -> None:
    assert saved(groups_of(rows)) == most_saved(rows)


@settings(max_examples=150)
@given(many_rows)
def test_groups_are_of_rows_that_begin_with_their_pages(rows: Rows) -> None:
    groups = groups_of(rows)
    grouped = [row for group in groups for row in group.rows]
    assert len(grouped) == len(set(grouped))
    for group in groups:
        assert len(group.rows) > 1
        assert list(group.rows) == sorted(group.rows)
        assert len(group.pages) > 0
        for row in group.rows:
            assert rows[row][: len(group.pages)] == group.pages


@settings(max_examples=50)
@given(many_rows)
def test_what_rows_are_made_of_makes_no_difference(rows: Rows) -> None:
    assert groups_of([array("i", row) for row in rows]) == groups_of(rows) == groups_of([list(row) for row in rows])


def test_nobody_shares() -> None:
    assert groups_of([]) == []
    assert groups_of([[], []]) == []
    assert groups_of([[1, 2, 3]]) == []
    assert groups_of([[1, 2], [2, 1], []]) == []


def test_the_common_prefix_of_all() -> None:
    assert groups_of([[7, 8, 1], [7, 8, 2], [7, 8]]) == [SharedPrefix((0, 1, 2), (7, 8))]


def test_many_with_a_short_prefix_against_few_with_a_long_one() -> None:
    """Two of four share 5 pages: alone (2-1)*5 + (2-1)*2 = 7, all together (4-1)*2 = 6."""
    long = [[1, 2, 3, 4, 5, 8], [1, 2, 3, 4, 5, 9]]
    short = [[1, 2, 6], [1, 2, 7]]
    assert groups_of(long + short) == [SharedPrefix((2, 3), (1, 2)), SharedPrefix((0, 1), (1, 2, 3, 4, 5))]
    # With one page less, 6 in two groups is no more than 6 in one.
    assert groups_of([row[:4] + row[5:] for row in long] + short) == [SharedPrefix((0, 1, 2, 3), (1, 2))]


def test_a_chain_deeper_than_python_recurses() -> None:
    """Row i leaves the common path after i pages."""
    path = list(range(1200))
    own = count(5000)
    rows = [[*path[:length], next(own)] for length in range(1200)]
    groups = groups_of(rows)
    assert saved(groups) > 0
    grouped = [row for group in groups for row in group.rows]
    assert len(grouped) == len(set(grouped))


def test_long_rows_that_part_at_any_place() -> None:
    """The strides of the comparison end on, before and after the place where rows part."""
    common = list(range(70))
    for place in range(1, 70):
        first, second = [*common, 1000], [*common[:place], -1, *common[place + 1 :], 2000]
        assert groups_of([first, second]) == [SharedPrefix((0, 1), tuple(common[:place]))]
        assert groups_of([first[:place], first]) == [SharedPrefix((0, 1), tuple(common[:place]))]
