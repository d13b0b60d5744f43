"""Associative recall: the value of each of several keys, given earlier in the sequence. Not a task of the arena."""
