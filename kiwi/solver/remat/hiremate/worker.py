"""A worker process: `python -m kiwi.solver.remat.hiremate.worker`.

Reads pickled (problem, seconds) from standard input and writes pickled answers to standard
output, until the input ends.
"""

import os
import pickle
import sys

from kiwi.solver.remat.hiremate.part_solver import solve_part


def main() -> None:
    """Answers one problem after the other."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a solver prints must not mix with answers
    while True:
        try:
            problem, seconds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(solve_part(problem, seconds), answers)
        answers.flush()


if __name__ == "__main__":
    main()
