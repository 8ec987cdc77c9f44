"""The experiments of KIWI's paper: one script per claim, with results as JSON beside the
scripts."""
