"""HiRemate (Gusak et al. 2023; text in Zhao's thesis, chapter 3): plans of parts, recombined.

`partition` groups the forward operators recursively (H-Partition), `cluster` takes the parts with
their backward operators, `option` prices ways to run a part, `combination` joins them without a
program, `part_solver` with one (H-ILP), `levels` goes from the smallest parts to the whole,
`workers` solves parts in parallel processes.
"""
