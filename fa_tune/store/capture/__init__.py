"""The attention problems that a program ran: the file, its parts, and what to tune for it."""
