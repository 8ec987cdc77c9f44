"""HiRemate (Gusak et al. 2023; text in Zhao's thesis, chapter 3): schedules of parts, recombined.

- `partition` groups the forward operators recursively (H-Partition).
- `cluster` takes each part with its backward operators.
- `option` prices ways to run a part, and joins parts without an integer program.
- `part_solver` joins parts with an integer program (H-ILP).
- `levels` goes from the smallest parts to the whole graph.
- `workers` solves parts in parallel processes.
"""
