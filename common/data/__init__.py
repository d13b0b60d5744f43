"""From published files to batches: readers, prepared data, tokens, random numbers as a function of their purpose."""
