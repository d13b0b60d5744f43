"""Pretraining of language models: BERT's masked tokens (Devlin et al. 2019) with n-gram masking."""
