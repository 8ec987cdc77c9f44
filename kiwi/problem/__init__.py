"""The planning problem: options of every unit, their prices, the edges between them."""
