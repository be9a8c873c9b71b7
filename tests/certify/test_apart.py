"""A thread apart: it works with the caller's settings, and ends with the first thing that goes wrong in it."""

import threading
import time
from contextvars import ContextVar

import pytest
import torch

from tiltproof.certify.apart import Apart

number: ContextVar[int] = ContextVar("number", default=0)


@pytest.fixture
def apart():
    thread = Apart()
    thread.start()
    yield thread
    thread.end()


def test_another_thread_and_always_the_same(apart):
    names = {apart.run(threading.get_ident) for _ in range(3)}
    assert len(names) == 1
    assert threading.get_ident() not in names


@pytest.mark.parametrize("gradients", [True, False])
def test_settings_of_the_caller_hold(apart, gradients):
    token = number.set(7)
    with torch.set_grad_enabled(gradients):
        assert apart.run(lambda: (number.get(), torch.is_grad_enabled())) == (7, gradients)
    with torch.inference_mode():
        assert apart.run(torch.is_inference_mode_enabled)
    assert not apart.run(torch.is_inference_mode_enabled)
    number.reset(token)


def test_an_exception_ends_the_thread(apart):
    first = apart.run(threading.current_thread)
    with pytest.raises(ZeroDivisionError):
        apart.run(lambda: 1 / 0)
    assert not apart.started
    assert not first.is_alive()
    apart.start()
    assert apart.run(threading.current_thread) is not first


def test_an_interruption_waits_for_what_was_begun(apart, monkeypatch):
    done = []

    def work():
        time.sleep(0.2)
        done.append(True)

    class Interrupted:
        def submit(self, *arguments):
            pool.submit(*arguments)
            raise KeyboardInterrupt

        def shutdown(self):
            pool.shutdown()

    pool = apart._thread
    monkeypatch.setattr(apart, "_thread", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        apart.run(work)
    assert done == [True]


def test_ending_twice_is_ending(apart):
    apart.end()
    apart.end()
    assert not apart.started
