"""The work that each attempt may spend, and the thresholds beyond which an attempt is not made.

A share is a part of the work that the effort allows for one plan (`kiwi.solver.effort`). The text
of each entry says what happens beyond it. [Attempts](docs/reference/attempts.md) lists the attempts
in their order.
"""

# The request: the searches that are made.

OFFLOADING_SHARE = 1 / 2
"""A search that offloads stops after this part of the work. The search without offloading, which
comes first, may spend all of the work."""

SECOND_SEARCH_SHARE = 1 / 2
"""A search that follows one without a plan stops after this part of the work."""

LEAST_PEAK_SHARE = 0.1
"""Each of the two searches for the least peak of the fastest shardings stops after this part of the
work."""

FIRST_RAISED = 1.1
"""If no peak is known, the first limit above the budget is this many times the budget."""

ABOVE_LEAST = 1.01
"""If a least peak was found, the limit above the budget is this many times that peak."""

MOST_RAISED = 1.25
"""If no peak is known, the second and last limit above the budget is this many times the budget."""

MOST_RAISED_TO_LEAST = 2.0
"""If a least peak was found, no limit beyond this many times the budget is tried. Estimates of
nested loops and of associative scans may be too high by up to this factor."""

MOST_RAISED_TO_FREE = 3.0
"""The free plan, which has no limit, is not compiled if the least peak is more than this many times
the budget."""

MOST_DROPPED_PINS = 12
"""Pins are dropped one at a time to find the pin to blame. If there are more pins than this, they
are only dropped all together, and all are named."""

PIN_TRIAL_EFFORT = "quick"
"""The effort of each trial without a pin. A trial ends with its first plan (`ANY_PLAN`)."""

ANY_PLAN = 1.0
"""The gap at which a search ends that only has to show that there is a plan: any plan ends it."""

QUICK_BOUND_SHARE = 0.1
"""The search for a bound stops after this part of the work. More work hardly raises the bound: most
of the solver's further work is rounding."""

LATE_ARGUMENT_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Successive sets move these parts of the bytes of arguments that only the update reads to the
host."""

EARLY_ARGUMENT_SHARES = (0.5, 1.0)
"""Successive sets then move these parts of the bytes of the other arguments that results replace to
the host."""

LEAST_ARGUMENT_SHARE = 1e-3
"""Arguments smaller than this part of the bytes of all candidates stay on the device."""

# The rounds of one search.

ENOUGH_PROGRAMS = 6
"""A closed loop ends after this many programs if one of them is within the budget. Further programs
gain a few percent, and take as long as the first ones."""

PROBLEM_ROUNDS = 5
"""A search of a problem ends after this many rounds, each with a compiled plan or a refusal."""

PREDICTED_ROUNDS = 6
"""A search of a problem without a compiler ends after this many rounds."""

SCHEDULE_ROUNDS = 4
"""A search of schedules ends after this many rounds, which share the time limit."""

LATE_SHARE = 0.25
"""A late round gets at least this part of the work and of the time limit, however much the rounds
before it took."""

LATE_SECONDS = 8.0
"""A late round gets at least this many seconds, but never more than half of the time limit. Without
a floor, a round that starts from a plan known not to fit would end after its first iterations."""

LEAST_SECONDS = 0.1
"""Every solve gets at least this many seconds, however little time is left. Its work limit may end
it earlier."""

LONG_STEP = 1000
"""Steps with at least this many operators are first searched under a limit below the budget
(`LONG_STEP_AIM`), since compiling a second plan takes long."""

LONG_STEP_AIM = 0.99
"""The first limit of a long step is this part of the budget. The rest is about the largest usual
difference between compiled and predicted peaks."""

# Solutions of one round.

LEAST_LAYERS = 4
"""Fewer equal layers are not tied: the whole problem is small, and there is more often a reason for
layers to differ."""

LEAST_EQUAL_SHARE = 0.5
"""Layers are not tied if less than this part of all nodes is in equal layers."""

TIED_SHARE = 0.5
"""The search with tied layers stops after this part of the round's work."""

TIED_ROUNDS = 2
"""The search with tied layers stops after this many rounds of the solver. The gap that remains may
be the cost of equal decisions, which no search of the tied problem closes."""

POLISH_ROUNDS = 4
"""The search that lets layers differ stops after this many rounds of the solver if it gains no more
than `DIFFERENT_LAYERS_GAIN`."""

DIFFERENT_LAYERS_GAIN = 0.005
"""Layers stay tied unless letting them differ saves at least this part of the step time."""

MOST_MISSED = 2
"""Obvious starts for other shardings of the arguments are left out after this many programs over
the budget."""

MOST_CROWD_CUTS = 4
"""A problem is solved again at most this often, each time with overlap limited where the copies of
the last solution crowd."""

MOST_OTHER_ARGUMENT_SHARDINGS = 1
"""No more than this many other shardings of the arguments are compared by their cost with kept
copies."""

OTHER_ARGUMENT_SHARDINGS_GAIN = 0.995
"""Another sharding of the arguments is taken only if the step then takes less than this part of its
time. The threshold is below 1 because that sharding may take more memory."""

# Programs of one round.

MOST_TIED_TRIALS = 4
"""Further steps of one plan are tied in at most this many trials."""

LEAST_TIED_PART = 1 / 16
"""The steps of a unit are not tied if the program holds less for it, beyond the plan, than this
part of the bytes over the budget."""

HOPELESS_PROGRAM = 1.05
"""If the peak of a program is more than this many times the smallest one, no further steps are tied
and no other heaps are tried: a lower limit takes less time."""

PROBLEM_ORDERS = range(1, 6)
"""The numbers of the other orders of one plan that may be compiled."""

MOST_PROBLEM_ORDERS = 8
"""No more than this many other orders are compiled for all plans of a search together."""

PREDICTED_ORDERS = range(1)
"""The numbers of the other orders of one plan that are estimated if there is no compiler."""

SCHEDULE_ORDERS = range(3)
"""The numbers of the other orders of one schedule that may be compiled."""

MOST_SCHEDULE_ORDERS = 8
"""No more than this many other orders are compiled for all schedules of a search together."""

LEAST_SLOWER = 0.005
"""More barriers and other orders of a plan over the budget are compiled only if the next plan is
slower by more than this part of the step time."""

# Limits.

LEAST_LOWERING = 0.001
"""A lowered limit is not raised again by less than this part of the budget."""

PROBLEM_RISE = 0.01
"""A limit between two known limits is not tried unless it is above the lower one by more than this
part of the budget."""

LOWER = 0.005
"""A limit falls by this part of the budget in addition to the program's excess: the next plan's
program may exceed its own limit by a little more."""

ROOM = 0.05
"""A higher limit is tried if the compiled program leaves more than this part of the budget free,
not counting what the plan left free. XLA:GPU holds less than predicted where it fuses deeply."""

SCHEDULE_RISE = 0.005
"""Another schedule is not searched unless its limit is above the best peak by at least this part of
the budget."""

REPEATED_CLOSE = 1.03
"""A randomised search that found no schedule is not repeated if the smallest peak known is more
than this many times the budget."""

NEAR_BUDGET = 0.95
"""Times at which the program holds less than this part of the budget do not correct the prediction:
such corrections would only narrow the search."""

# Programs whose collectives overlap with computation.

OVERLAP_GAIN = 0.99
"""Programs whose collectives overlap are compiled only if the plan is predicted to take at most
this part of the time that it takes if it waits for collectives. A plan of less memory is compiled
only if it is expected to take at most this part of the fastest program's time."""

MOST_OVERLAP_PLANS = 3
"""The search for an overlapping program compiles at most this many plans of less memory."""

MOST_LARGER = 1
"""If the programs of more than this many plans of less memory are no smaller, the search ends. One
such plan is tolerated, since the peaks of programs follow the peaks of plans only loosely."""

MOST_WAYS = 2
"""No more than this many of the compiler's ways to overlap are compiled for one plan."""

SETTLED = 0.02
"""Other ways to overlap are not compiled for a program within the budget that waits for
communication for less than this part of its time."""

MOST_OVER = 0.5
"""If a program is over the budget by more than this part of the budget, no plan of less memory
follows."""

FURTHER = 0.04
"""The limit falls by the excess of the last program, and by this part of the budget for each plan
of less memory tried before. The peaks of programs whose collectives begin early follow the peaks of
plans only loosely."""

LITTLE_FURTHER = 0.01
"""The first limit falls by this part of the budget, in addition to the excess of the first program:
programs of one step exceed their plans by almost the same bytes, up to this part."""

LOOSE = 0.015
"""No further limit is tried if the two known limits are at most this part of the budget apart, or
if a program leaves less than this part free."""

NEARLY = 0.05
"""The first plan is compiled with gradients in time if its program is over the budget by at most
this part of it: that form saves up to about as much. Beyond it, up to `FAR_OVER`, a plan of less
memory comes first. A form is not compiled for further plans if its program is larger than the best
one's by more than this part."""

FAR_OVER = 0.2
"""The first plan is also compiled with gradients in time if its program is over the budget by more
than this part of it. A plan of that much less memory is slower than one whose matmuls wait, and its
program holds what begins early as well."""

SMALLER_FORM = 1.05
"""If the fastest program is over the budget by more than `NEARLY`, a smaller program determines the
form of further plans, unless it takes more than this multiple of the fastest one's time."""

LESS_OVER = 0.75
"""A smaller program does not determine the form of further plans if its excess over the budget is
more than this part of the fastest one's excess."""

FULL = 0.75
"""If the plan is predicted to need at least this part of the budget, a barrier keeps metrics of the
forward pass from being computed late. A plan with more room does not spend the barrier's time."""

AS_FAST = 1.01
"""Programs that take at most this multiple of the fastest one's time count as equally fast, and the
smallest of them is taken."""

COMPARABLE = 1.02
"""A second form is compiled for plans of less memory unless its program of the first plan takes
more than this multiple of the best one's time."""

CLEARLY_FASTER = 0.95
"""The program that waits for its collectives is not compiled if the overlapping one takes at most
this part of the time that a waiting program is predicted to take. If programs are slower than
predicted, both are."""

GRADIENTS_HIDDEN = 0.5
"""If matmuls wait for gradients, this part of the hidden reductions stays hidden. Gradients are
then reduced in pairs, from the second gradient until a few matmuls after the first."""

SLOWER_PROGRAM = 1.25
"""The kernels of a program are compared with the plan's prices only if the program takes more than
this multiple of the plan's time. Predictions of smaller error are usual, and correcting them leads
to no faster plan."""

NOTICED_KERNEL = 0.05
"""The price of a kind of unit is not corrected if its units together take longer by less than this
part of the compiled step."""

UNPLANNED_TRANSFERS = 0.3
"""If unplanned transfers make up at least this part of a kind's additional time, only the price of
its present sharding is corrected. Otherwise the price of all shardings is."""

LATE_PROGRAM = 1.1
"""Less overlap is learnt only from a program that takes more than this multiple of the plan's
time."""

CAUSED_BY_WAITING = 0.5
"""Less overlap is learnt only if waiting for communication accounts for at least this part of the
time by which the program is late."""

LEARNT_OVERLAP = 0.75
"""The next plan counts on less overlap by this part of the overlap that the program did not reach.
All of it would be too much: a plan that counts on little overlap hides more than it counts on."""

MOST_CORRECTIONS = 2
"""A step is planned again with corrections from programs at most this often. The plan with the
fastest program is the answer."""

CORRECTED_PROGRAMS = 2
"""The number of programs that each planning with corrected prices may compile."""

CORRECTED_SHARE = 0.5
"""Planning again with corrections stops after this part of the work."""
