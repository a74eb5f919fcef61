"""A clean process, one for a program, that imports what workers need and forks them; never the program itself."""
