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
        count = grow_forest(net, work, order, len(choice))
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


@numba.njit(cache=True)
def forced_moves(
    net: Network, work: Workspace, table, unary, choice, top, lift, limit, tries, most, least_gain
):
    """Forces a random option on a random node, and lets forests of up to `most` nodes around it
    follow: first with the node frozen, then with it free.

    What others must change along with a node (a hub that many operators must agree with) is
    found this way. A move stands only if it lowers the cost under `unary` and `table` and keeps
    within the limit (or does not raise the peak above it). Returns the change of the cost.
    """
    gained = 0.0
    before = choice.copy()
    ball = np.empty(len(choice), dtype=np.int64)
    for _ in range(tries):
        i = np.random.randint(0, len(choice))
        first, size = net.option_start[i], net.option_start[i + 1] - net.option_start[i]
        option = np.random.randint(0, size)
        if option == choice[i] or net.cost[first + option] == np.inf:
            continue
        change = _force(net, work, table, unary, choice, i, option, ball, most)
        peak = top[1]
        accept = change < -least_gain
        if accept:
            _book(net, choice, before, top, lift)
            if top[1] > max(limit, peak):
                _book(net, before, choice, top, lift)
                accept = False
        if accept:
            gained += change
            before[:] = choice
        else:
            choice[:] = before
    return gained


@numba.njit(cache=True)
def _force(net, work, table, unary, choice, i, option, ball, most):
    """The change of the cost by the forced option and what follows from it."""
    change = -_cost_around(net, table, unary, choice, i)
    choice[i] = option
    change += _cost_around(net, table, unary, choice, i)
    count = _ball(net, i, ball, most)
    work.frozen[i] = True
    for _ in range(3):
        change += _shuffled_forest(net, work, table, unary, choice, ball[:count], most)
    work.frozen[i] = False
    for _ in range(2):
        change += _shuffled_forest(net, work, table, unary, choice, ball[:count], most)
    return change


@numba.njit(cache=True)
def _shuffled_forest(net, work, table, unary, choice, ball, most):
    np.random.shuffle(ball)
    count = grow_forest(net, work, ball, most)
    change = optimise_tree(net, work, table, unary, choice, count)
    release(net, work, count)
    return change


@numba.njit(cache=True)
def _cost_around(net, table, unary, choice, i):
    """Cost of a node and of all its edges."""
    total = unary[net.option_start[i] + choice[i]]
    for near in range(net.near_start[i], net.near_start[i + 1]):
        e = net.near_edge[near]
        row = net.row_class[net.row_start[e] + choice[net.tail[e]]]
        col = net.col_class[net.col_start[e] + choice[net.head[e]]]
        total += table[net.table_start[e] + row * net.col_count[e] + col]
    return total


@numba.njit(cache=True)
def _ball(net, centre, ball, most):
    """Fills `ball` with up to `most` nodes, nearest first; returns how many."""
    seen = np.zeros(len(net.option_start) - 1, dtype=np.bool_)
    ball[0], seen[centre] = centre, True
    count, reached = 1, 0
    while reached < count and count < most:
        i = ball[reached]
        reached += 1
        for near in range(net.near_start[i], net.near_start[i + 1]):
            e = net.near_edge[near]
            j = net.head[e] if net.tail[e] == i else net.tail[e]
            if not seen[j] and count < most:
                seen[j] = True
                ball[count] = j
                count += 1
    return count


@numba.njit(cache=True)
def _book(net, choice, before, top, lift):
    """Replaces the memory of `before` by that of `choice`."""
    for i in range(len(choice)):
        if choice[i] != before[i]:
            add_option(net, top, lift, net.option_start[i] + before[i], -1)
            add_option(net, top, lift, net.option_start[i] + choice[i], 1)
