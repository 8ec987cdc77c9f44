"""Lives of buffers, as XLA's heap simulator traces them."""

from types import SimpleNamespace

from kiwi.xla.read.heap_trace import traced_lives


def event(kind: int, buffer: int, instruction: str) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, buffer_id=buffer, instruction_name=instruction)


def test_lives_follow_the_heap_simulators_trace():
    """a is read by c, whose result takes over b's place; d is never freed."""
    position = {"a": 0, "b": 1, "c": 4, "d": 6}
    events = [
        event(0, 10, "a"),
        event(0, 11, "b"),
        event(2, 12, "c"),
        event(1, 11, "b"),
        event(1, 10, "a"),
        event(0, 13, "d"),
        event(1, 12, "c"),
    ]
    assignment = SimpleNamespace(heap_simulator_traces=[SimpleNamespace(events=events)])
    assert traced_lives(assignment, position) == {
        10: (0, 6),
        11: (1, 6),
        12: (4, 7),
        13: (6, 7),
    }
