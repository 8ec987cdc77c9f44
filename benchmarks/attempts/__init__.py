"""Which attempts of a search made the plans of the goldens, of the field's programs, of the models of
the fidelity tables, and of the programs whose planning time is measured."""
