"""The options of a run that is not ONNX Runtime's."""

from __future__ import annotations

from popgate_python_worker.plain_options import PlainOptions


def test_who_was_forgotten_is_not_told() -> None:
    options, told, others = PlainOptions(), list[bool](), list[bool]()

    class Waiter:
        def give_up(self) -> None:
            told.append(True)

    waiter = Waiter()
    options.on_end(waiter.give_up)
    options.on_end(lambda: others.append(True))
    options.forget(waiter.give_up)
    options.terminate = True
    assert not told
    assert others == [True]
