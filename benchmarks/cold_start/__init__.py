"""How long the first plan on a new machine takes."""
