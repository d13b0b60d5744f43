"""BERT (Devlin et al. 2019) with the shared encoder; reading and writing of public checkpoints."""
