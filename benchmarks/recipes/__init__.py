"""MaxText's recipes, priced and compiled, beside Kiwi's recipes."""
