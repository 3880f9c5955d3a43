"""A run is asked to stop once, politely; a second Ctrl-C is not waited for."""

import os
import signal

import pytest

from fasten.signals import asked_to_stop


@pytest.fixture(autouse=True)
def heard():
    """As in a terminal: what a shell starts in the background may have been told to ignore them."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_second_interrupt_counts_also_while_the_first_one_is_answered():
    said = []

    def say(sentence: str) -> None:
        said.append(sentence)
        os.kill(os.getpid(), signal.SIGINT)

    with asked_to_stop(say) as stopping:
        assert not stopping()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert said == ["stopping after this update, with a checkpoint; Ctrl-C again stops at once"]


def test_another_signal_after_the_first_says_nothing_more():
    said = []
    with asked_to_stop(said.append) as stopping:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stopping()
    assert len(said) == 1
