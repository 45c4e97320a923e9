"""Where the catalog's figures come from: the providers' own price lists, or collected tables."""
