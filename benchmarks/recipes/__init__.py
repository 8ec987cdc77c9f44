"""MaxText recipes priced, compiled, and beside Kiwi's."""
