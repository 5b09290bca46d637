"""What C++ programs use."""
