"""The native core of Penstock. Use it through its Python wrappers."""
