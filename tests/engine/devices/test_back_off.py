"""How long to wait before trying again."""

from __future__ import annotations

from engine.devices.back_off import BackOff


def test_it_doubles_up_to_a_limit_and_success_resets_it() -> None:
    back_off = BackOff()
    assert back_off.seconds == 0
    pauses = []
    for _ in range(12):
        back_off.begin()
        pauses.append(back_off.seconds)
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert pauses[-1] == 10
    back_off.succeed()
    assert back_off.seconds == 0
