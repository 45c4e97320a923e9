"""The operations that commands and the Python API offer: async functions that emit events and
return data. They must not print, and must not know how they were called."""
