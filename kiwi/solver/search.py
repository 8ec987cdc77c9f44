"""Local search over induced trees, with or without regard to the memory limit."""

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.network import Network, cell
from kiwi.solver.peak import PeakTree, exchange
from kiwi.solver.trees import Workspace, grow_forest, grow_tree, optimise_tree, release


@kernel
def seed_random(seed):
    """Seeds numba's random generator, which compiled code uses instead of numpy's."""
    np.random.seed(seed)


@kernel
def forest_descent(net: Network, work: Workspace, unary, choice, rounds):
    """Re-optimises `rounds` random maximal induced forests of the whole graph, whatever memory they
    use. Changes `choice`; returns the change of the cost under `unary`."""
    gained = 0.0
    for _ in range(rounds):
        gained += _forest(net, work, unary, choice, np.random.permutation(len(choice)), len(choice))
    return gained


@inner
def _forest(net, work, unary, choice, order, most):
    count = grow_forest(net, work, order, most)
    change = optimise_tree(net, work, unary, choice, count)
    release(net, work, count)
    return change


@kernel
def tree_descent(net: Network, work: Workspace, unary, choice, peak: PeakTree, moves, most):
    """Re-optimises `moves` trees of up to `most` nodes around random nodes.

    A move is undone if it raises the peak above the limit, or raises a peak that is above the limit
    already. Changes `choice` and `peak`; returns the change of the cost under `unary`.
    """
    gained = 0.0
    for _ in range(moves):
        size = np.random.randint(1, most + 1)
        count = grow_tree(net, work, np.random.randint(0, len(choice)), size)
        change = optimise_tree(net, work, unary, choice, count)
        before, moved = peak.top[1], False
        for i in work.members[:count]:
            moved |= exchange(net, peak, i, work.old_choice[i], choice[i])
        if moved and peak.top[1] > max(net.limit_bytes, before):
            for i in work.members[:count]:
                exchange(net, peak, i, choice[i], work.old_choice[i])
                choice[i] = work.old_choice[i]
        else:
            gained += change
        release(net, work, count)
    return gained


@kernel
def forced_moves(
    net: Network, work: Workspace, unary, choice, peak: PeakTree, tries, most, least_gain
):
    """Forces a random option on a random node, `tries` times, and re-optimises forests of up to
    `most` nodes around the node: first with the node frozen, then with it free.

    Nodes that must change together (operators that must agree with a hub) can change this way. A
    move is undone unless it lowers the cost under `unary` by more than `least_gain` and keeps the
    peak within the limit (or does not raise a peak above the limit). Changes `choice` and `peak`;
    returns the change of the cost.
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
        change = _force(net, work, unary, choice, i, option, ball, most)
        if change < -least_gain and _fits(net, peak, before, choice):
            gained += change
            for j in range(len(choice)):
                before[j] = choice[j]
        else:
            for j in range(len(choice)):
                choice[j] = before[j]
    return gained


@inlined
def _fits(net, peak, before, choice):
    """Replaces the memory of the choice `before` by the memory of `choice` in the peak tree.
    Returns whether it fits; if not, the tree is restored."""
    allowed = max(net.limit_bytes, peak.top[1])
    for i in range(len(choice)):
        exchange(net, peak, i, before[i], choice[i])
    if peak.top[1] <= allowed:
        return True
    for i in range(len(choice)):
        exchange(net, peak, i, choice[i], before[i])
    return False


@inlined
def _force(net, work, unary, choice, i, option, ball, most):
    """Forces an option on node i and re-optimises forests around it. Returns the change of the
    cost."""
    change = -_cost_around(net, unary, choice, i)
    choice[i] = option
    change += _cost_around(net, unary, choice, i)
    near = ball[: _fill_ball(net, i, ball, most)]
    for turn in range(5):
        work.frozen[i] = turn < 3
        np.random.shuffle(near)
        change += _forest(net, work, unary, choice, near, most)
    return change


@inner
def _cost_around(net, unary, choice, i):
    """Returns the cost of node i and of all its edges."""
    total = unary[net.option_start[i] + choice[i]]
    for near in range(net.near_start[i], net.near_start[i + 1]):
        h = net.near_end[near]
        total += net.table[cell(net, h, choice[i], choice[net.end_node[h ^ 1]])]
    return total


@inlined
def _fill_ball(net, centre, ball, most):
    """Fills `ball` with up to `most` nodes around `centre`, nearest first. Returns their number."""
    seen = np.zeros(len(net.option_start) - 1, dtype=np.bool_)
    ball[0], seen[centre] = centre, True
    count, reached = 1, 0
    while reached < count and count < most:
        i = ball[reached]
        reached += 1
        for near in range(net.near_start[i], net.near_start[i + 1]):
            j = net.end_node[net.near_end[near] ^ 1]
            if not seen[j] and count < most:
                seen[j] = True
                ball[count] = j
                count += 1
    return count
