"""The experiments of KIWI's paper: one script per claim, results as JSON beside them."""
