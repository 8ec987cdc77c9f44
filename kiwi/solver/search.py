"""Local search over induced trees, free or under the memory limit."""

import numba
import numpy as np

from kiwi.solver.network import Network
from kiwi.solver.peak import add_option
from kiwi.solver.trees import Workspace, grow_forest, grow_tree, optimise_tree, release


@numba.njit(cache=True)
def seed_random(seed):
    """Seeds the generator of the compiled code, which is not numpy's."""
    np.random.seed(seed)


@numba.njit(cache=True)
def forest_descent(net: Network, work: Workspace, table, unary, choice, rounds):
    """Re-optimises random maximal induced forests of the whole graph, whatever memory they use.

    Returns the change of the cost under `unary` and `table`.
    """
    gained = 0.0
    for _ in range(rounds):
        order = np.random.permutation(len(choice))
        count = grow_forest(net, work, order)
        gained += optimise_tree(net, work, table, unary, choice, count)
        release(net, work, count)
    return gained


@numba.njit(cache=True)
def tree_descent(
    net: Network, work: Workspace, table, unary, choice, top, lift, limit, moves, most
):
    """Re-optimises `moves` small trees around random nodes; `top`, `lift` is the tree of `peak`.

    A move stands only if the peak stays within the limit, or does not rise where it is above
    already. Returns the change of the cost under `unary` and `table`.
    """
    gained = 0.0
    for _ in range(moves):
        size = np.random.randint(1, most + 1)
        count = grow_tree(net, work, np.random.randint(0, len(choice)), size)
        change = optimise_tree(net, work, table, unary, choice, count)
        before = top[1]
        moved = _exchange(net, work, choice, top, lift, count)
        if moved and top[1] > max(limit, before):
            _undo(net, work, choice, top, lift, count)
        else:
            gained += change
        release(net, work, count)
    return gained


@numba.njit(cache=True)
def _exchange(net, work, choice, top, lift, count):
    """Books the memory of the tree's new options; True where any changed."""
    moved = False
    for k in range(count):
        i = work.members[k]
        if choice[i] != work.old_choice[i]:
            moved = True
            add_option(net, top, lift, net.option_start[i] + work.old_choice[i], -1)
            add_option(net, top, lift, net.option_start[i] + choice[i], 1)
    return moved


@numba.njit(cache=True)
def _undo(net, work, choice, top, lift, count):
    for k in range(count):
        i = work.members[k]
        if choice[i] != work.old_choice[i]:
            add_option(net, top, lift, net.option_start[i] + choice[i], -1)
            add_option(net, top, lift, net.option_start[i] + work.old_choice[i], 1)
            choice[i] = work.old_choice[i]
