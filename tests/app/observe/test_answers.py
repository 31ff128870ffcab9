"""Counting answers: cells in memory that another process reads, and their bound."""

from __future__ import annotations

from collections import Counter

from app.config.keys import KeyConfig
from app.observe.answers import ANSWERS_SIZE, MOST_CELLS, OTHER, Answers, Labels
from app.serving.keys import Key


def test_what_is_counted_is_read_by_another_process() -> None:
    memory = memoryview(bytearray(ANSWERS_SIZE))
    mine, theirs = Answers(memory), Answers(memory)
    key = Key(KeyConfig("shop", b"x" * 32))
    wanted: Counter[Labels] = Counter()
    for times, labels in enumerate(
        (
            ("infer", "429", "key_rate", "shop"),
            ("none", "400", "bad_http", ""),
            ("health", "200", "", ""),
            ("health", "200", "", "shop"),
        ),
        3,
    ):
        for _ in range(times):
            route, status, code, name = labels
            mine.count(route, int(status), code, name)
        wanted[labels] = times
    mine.cells[mine.of_success(key)] += 5
    mine.cells[mine.succeeded[key]] += 1
    mine.cells[mine.of_success(None)] += 2
    wanted["infer", "200", "", "shop"] = 6
    wanted["infer", "200", "", ""] = 2
    assert dict(theirs.items()) == dict(mine.items()) == wanted


def test_what_another_process_has_counted_can_be_added() -> None:
    mine, theirs = Answers(), Answers()
    for _ in range(3):
        mine.count("infer", 401, "api_key_wrong", OTHER)
        theirs.count("infer", 401, "api_key_wrong", OTHER)
    theirs.count("infer", 403, "key_not_allowed", "shop")
    mine.add(dict(theirs.items()))
    assert dict(mine.items()) == {
        ("infer", "401", "api_key_wrong", OTHER): 6,
        ("infer", "403", "key_not_allowed", "shop"): 1,
    }


def test_a_request_without_a_key_has_the_label_that_the_server_gives_it() -> None:
    answers = Answers(keyless=OTHER)
    answers.cells[answers.of_success(None)] += 1
    assert dict(answers.items()) == {("infer", "200", "", OTHER): 1}


def test_there_are_only_so_many_combinations_and_none_is_lost() -> None:
    answers = Answers()
    most = 3 * MOST_CELLS
    for number in range(most):
        answers.count("infer", 200 + number % 500, f"code-{number}", "shop")
        answers.count("metadata", 200 + number % 500, f"code-{number}", "shop")
    answers.count("infer", 200, "x" * 5000, "shop")
    found = dict(answers.items())
    assert len(found) <= MOST_CELLS
    assert sum(found.values()) == 2 * most + 1
    assert found["infer", "200", OTHER, OTHER] >= 1
    assert found[OTHER, OTHER, OTHER, OTHER] >= 1


def test_keys_that_come_and_go_do_not_add_up() -> None:
    answers = Answers()
    for number in range(20_000):
        key = Key(KeyConfig(f"key-{number % 10}", b"x" * 32))
        answers.cells[answers.of_success(key)] += 1
    assert sum(answers.cells) == 20_000
    assert len(answers.succeeded) < 20_000
    assert len(dict(answers.items())) == 10
