"""Sources of the price catalog: the clouds' price lists, or CSV tables."""
