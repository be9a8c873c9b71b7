"""How many things are computed at a time, by the memory there is."""
