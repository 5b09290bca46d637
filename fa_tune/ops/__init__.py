"""What is computed: FLOPs, compile-time traits, verification."""
