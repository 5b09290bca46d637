"""The C++ core in Python: built with the host's compiler, called through its C ABI."""
