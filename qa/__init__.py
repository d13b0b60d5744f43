"""Finetuning on question answering and inference: SQuAD 1.1, SQuAD 2.0, MNLI."""
