"""From batches to trained weights: the loop, its steps, checkpoints that resume bit for bit, the machine."""
