"""From published files to batches: readers, prepared data, tokenizers, keyed random numbers."""
