"""Counts which attempts of a search made the plans of other benchmarks: the goldens, the
programs of the field, the models of the fidelity tables, the programs whose planning time is
measured, and requests for offloading and for a schedule."""
