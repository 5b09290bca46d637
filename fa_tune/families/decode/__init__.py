"""The `decode` family: few queries after many keys, for compute capability 8.0 and later."""
