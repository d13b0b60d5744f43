"""BERT (Devlin et al. 2019) around the shared encoder, and public checkpoints of it, read and written."""
