"""Costs: the ledger of what instances have cost, and estimates of what a plan will cost.

Nothing here calls a provider: usage and prices come in as data.
"""
