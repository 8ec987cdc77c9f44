"""Who may spend what, and from where on an attempt is not worth it: one table for all attempts.

Shares are parts of the work that the effort allows for one plan (`kiwi.solver.effort`). The text of
each entry says what happens beyond it. [Attempts](docs/reference/attempts.md) lists
the attempts in their order.
"""

# The request: which searches are made at all.

OFFLOADING_SHARE = 1 / 2
"""A search that offloads stops after this part of the work. The search without offloading, which
comes first, has all of it."""

SECOND_SEARCH_SHARE = 1 / 2
"""A search that follows one without a plan stops after this part of the work."""

LEAST_PEAK_SHARE = 0.1
"""Each of the two searches for the least peak of the fastest shardings stops after this part of the
work."""

BASELINES_SHARE = 1 / 2
"""All baselines together stop after this part of the work; each has an equal part of it."""

BASELINES_HOPELESS = 1.25
"""Baselines are not asked if the smallest peak found is more than this many times the budget: they
recompute another selection of operators, they do not plan another step."""

BASELINES_CLOSE = 1.02
"""Baselines are not asked if the smallest compiled program is more than this many times the budget:
the part beyond the budget is what they have to save."""

FIRST_RAISED = 1.1
"""The first limit above the budget, in parts of the budget, if no peak is known."""

ABOVE_LEAST = 1.01
"""The limit above the budget, in parts of the least peak that was found."""

MOST_RAISED = 1.25
"""No limit beyond this many times the budget is tried where no peak is known."""

MOST_RAISED_TO_LEAST = 2.0
"""Nor one beyond this many times the budget where the least peak is known: estimates of loops that
stand in loops, and of associative scans, are up to so much too high."""

MOST_RAISED_TO_FREE = 3.0
"""The free plan is compiled if the least peak is at most this many times the budget."""

MOST_DROPPED_PINS = 12
"""Pins are dropped one at a time to find the one to blame. If there are more, all are named."""

PIN_TRIAL_EFFORT = "quick"
"""The effort of each trial without a pin; it ends earlier, with the first plan."""

ANY_PLAN = 1.0
"""The gap at which a search ends that only asks whether there is a plan."""

QUICK_BOUND_SHARE = 0.1
"""The search for a bound stops after this part of the work. More hardly raises the bound: most of
the rest is rounding."""

LATE_ARGUMENT_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Arguments that only the update reads go to the host in these parts of their bytes."""

EARLY_ARGUMENT_SHARES = (0.5, 1.0)
"""The other arguments that results replace go to the host in these parts of their bytes."""

LEAST_ARGUMENT_SHARE = 1e-3
"""Arguments smaller than this part of the bytes of all candidates stay on the device."""

# The rounds of one search.

PROBLEM_ROUNDS = 5
"""A search of a problem ends after this many compiled plans."""

PREDICTED_ROUNDS = 6
"""A search without a compiler ends after this many solutions."""

SCHEDULE_ROUNDS = 4
"""A search of schedules ends after this many; they share the time limit."""

LATE_SHARE = 0.25
"""A late round gets at least this part of the work and of the time limit, however much the rounds
before it took."""

LATE_SECONDS = 8.0
"""A late round gets at least this many seconds, but never more than half of the time limit. Without
a floor, a round that starts from a plan known not to fit would end after its first iterations."""

LEAST_SECONDS = 0.1
"""A search gets at least this many seconds; work ends it."""

LONG_STEP = 1000
"""Steps with at least this many operators are first searched below the budget: their check takes
long."""

LONG_STEP_AIM = 0.99
"""The first limit of a long step, in parts of the budget: compiled peaks differ from predicted ones
by up to about the rest."""

# Solutions of one round.

LEAST_LAYERS = 4
"""Fewer equal layers are not tied: the whole problem is small, and layers differ for a reason more
often."""

LEAST_EQUAL_SHARE = 0.5
"""Layers are not tied if less than this part of all nodes is in equal layers."""

TIED_SHARE = 0.5
"""The search with tied layers stops after this part of the round's work."""

TIED_ROUNDS = 2
"""The search with tied layers stops after this many rounds of the solver. What stays open then may
be what its layers have to do alike, which no search of the tied problem closes."""

POLISH_ROUNDS = 4
"""The search that lets layers differ stops after this many rounds of the solver if it gains no more
than `DIFFERENT_LAYERS_GAIN`."""

DIFFERENT_LAYERS_GAIN = 0.005
"""Layers stay tied unless letting them differ saves at least this part of the step time."""

MOST_MISSED = 2
"""Obvious starts are left out after this many programs over the budget."""

MOST_CROWD_CUTS = 4
"""A problem is solved at most this often again with copies that crowd where those of the last
solution do."""

MOST_OTHER_ARGUMENT_SHARDINGS = 1
"""No more than this many other shardings of the arguments are compared once copies are kept."""

OTHER_ARGUMENT_SHARDINGS_GAIN = 0.995
"""Another sharding of the arguments is taken only if it brings the step to this part of its time:
it may take more memory."""

# Programs of one round.

MOST_TIED_TRIALS = 4
"""Steps of one plan are tied at most this often by what its compiled program holds."""

LEAST_TIED_PART = 1 / 16
"""The steps of an operator are not tied if it holds less than this part of the bytes over the
budget."""

HOPELESS_PROGRAM = 1.05
"""If a program is more than this many times the smallest one, no further steps are tied and no
other places on the heap are tried; a lower limit takes less time then."""

PROBLEM_ORDERS = range(1, 6)
"""The numbers of the other orders of one plan that are compiled."""

MOST_PROBLEM_ORDERS = 8
"""No more than this many other orders of all plans of a search are compiled."""

PREDICTED_ORDERS = range(1)
"""The numbers of the other orders of one plan that is not compiled."""

SCHEDULE_ORDERS = range(3)
"""The numbers of the other orders of one schedule."""

MOST_SCHEDULE_ORDERS = 8
"""No more than this many other orders of all schedules of a search are compiled."""

LEAST_SLOWER = 0.005
"""More barriers and other orders of a plan over the budget are compiled only if the next plan is
slower by at least this part of the step."""

# Limits.

LEAST_LOWERING = 0.001
"""A limit is not moved back if it was lowered by less than this part of the budget."""

PROBLEM_RISE = 0.01
"""A limit between two known ones is not tried unless it is above the lower one by this part of the
budget."""

LOWER = 0.005
"""A limit falls by this part of the budget beside what the program is over it: another plan's
program is over its own limit by a little more or less."""

ROOM = 0.05
"""A higher limit is tried if the compiled program leaves more than this part of the budget free,
not counting what the plan left free. XLA:GPU holds less than predicted where it fuses deeply."""

SCHEDULE_RISE = 0.005
"""Another schedule is not sought unless its limit is above the best peak by this part of the
budget."""

REPEATED_CLOSE = 1.03
"""A randomised search that found nothing is repeated unless the smallest peak known is more than
this many times the budget."""

NEAR_BUDGET = 0.95
"""Compiled memory below this part of the budget does not correct the prediction: that would only
narrow the search."""

# Programs whose collectives overlap with computation.

OVERLAP_GAIN = 0.99
"""Programs whose collectives overlap are compiled only if the plan is predicted to take at most
this part of the time that it takes if it waits for them; a plan of less memory, only if it is
expected to take at most this part of the fastest program's time."""

MOST_OVERLAP_PLANS = 3
"""No more than this many plans of less memory are compiled."""

MOST_LARGER = 1
"""One plan of less memory may have no smaller program: programs follow plans loosely. After a
second one the search ends."""

MOST_WAYS = 2
"""No more than this many of the compiler's ways to overlap are compiled for one plan."""

SETTLED = 0.02
"""Other ways to overlap are not compiled if the program waits for communication for less than this
part of its time."""

MOST_OVER = 0.5
"""A program is not aimed at if it is over the budget by more than this part of it."""

FURTHER = 0.04
"""Each plan needs less by this part of the budget, beside what the program before it was over:
programs whose collectives begin early follow plans loosely."""

LITTLE_FURTHER = 0.01
"""The first of these plans needs less by this part of the budget: programs of one step are over
their plans by the same, give or take as much."""

LOOSE = 0.015
"""No further limit is tried if less than this part of the budget is between two known ones, or
left."""

NEARLY = 0.05
"""The first plan is compiled with gradients in time if its program is over the budget by at most
this part of it: that saves up to about so much. Beyond, a plan of less memory comes first, up to
`FAR_OVER`. No second form is compiled for further plans whose program is larger than the best one's
by more than this part."""

FAR_OVER = 0.2
"""The first plan is also compiled with gradients in time if its program is over the budget by more
than this part of it. A plan of that much less memory is slower than one whose matmuls wait, and its
program holds what begins early as well."""

SMALLER_FORM = 1.05
"""If the fastest program is over the budget by more than `NEARLY`, a smaller one says how further
plans are compiled, unless it takes more than this multiple of its time."""

LESS_OVER = 0.75
"""Nor does a smaller program say so if it is over the budget by more than this part of what the
fastest one is over."""

FULL = 0.75
"""Metrics of the forward pass are read in time if the plan is predicted to need at least this part
of the budget: the barrier takes time that a plan with room need not spend."""

AS_FAST = 1.01
"""Programs within this factor of the fastest one's time count as fast as it; the smallest of them
is taken."""

COMPARABLE = 1.02
"""A second form of overlapping programs is compiled for plans of less memory if its program of the
first plan is within this factor of the best one's time."""

CLEARLY_FASTER = 0.95
"""The program that waits for its collectives is not compiled if the overlapping one takes at most
this part of what a plan that waits is predicted to take. Where it is slower than predicted, so are
both."""

GRADIENTS_HIDDEN = 0.5
"""The part of hidden reductions that stays hidden where matmuls wait for gradients: gradients are
summed in pairs, from the second on until a few matmuls behind the first."""

SLOWER_PROGRAM = 1.25
"""The kernels of a program are compared with the plan's if it takes more than this multiple of the
plan's time: drawn models are off by half as much in the median, and no other plan is faster."""

NOTICED_KERNEL = 0.05
"""A kind of unit is corrected if its units take longer by this part of the compiled step."""

UNPLANNED_TRANSFERS = 0.3
"""What a kind of unit takes longer belongs to its sharding if transfers make up this part of it."""

LATE_PROGRAM = 1.1
"""A plan may count on less overlap if its program takes more than this multiple of its time."""

CAUSED_BY_WAITING = 0.5
"""A program is late for want of overlap if that accounts for this part of the difference."""

LEARNT_OVERLAP = 0.75
"""The next plan counts on less overlap by this part of what a program did not reach. All of it is
too much: a plan that counts on little hides more than it counts on."""

MOST_CORRECTIONS = 2
"""A step is planned again with what programs taught at most this often, and as long as that makes
the program faster."""

CORRECTED_SHARE = 0.5
"""The part of the work that planning again may take."""
