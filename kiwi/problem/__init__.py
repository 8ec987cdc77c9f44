"""The planning problem: the options of every unit, their prices, and the edges between units."""
