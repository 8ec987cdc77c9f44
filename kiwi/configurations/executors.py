"""Where tasks run: in this process, in processes of their own, or where the caller says."""

import contextlib
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from kiwi import loading
from kiwi.errors import InvalidArgumentError


class InThisProcess(Executor):
    """Runs a task when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """The future is done."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextlib.contextmanager
def executor_of(given: Executor | None, jobs: int, needed: Any, devices: int) -> Iterator[Executor]:
    """The given executor, or one for so many processes, which ends with the block.

    - `needed`: what tasks need, to be sent to processes.
    - `devices`: how many virtual CPU devices make the compile check of XLA:CPU cheap.

    **Raises:** `InvalidArgumentError` if `needed` cannot be sent.
    """
    if jobs < 1:
        raise InvalidArgumentError(f"jobs={jobs} is not positive.")
    if given is not None:
        yield given
        return
    if jobs == 1:
        yield InThisProcess()
        return
    _check_can_be_sent(needed)
    # A forked process would inherit jax's threads and might hang.
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=loading.use_cpu_devices,
        initargs=(devices,),
    )
    try:
        yield pool
    finally:
        # What was started ahead of the order is not waited for.
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _check_can_be_sent(needed: Any) -> None:
    try:
        pickle.dumps(needed)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidArgumentError(
            f"make_step or an option cannot be sent to other processes: {error}.",
            cause="It is a lambda or a function inside of another one.",
            suggestion='A function of a module, "FILE.py:make_step", or jobs=1.',
        ) from error
