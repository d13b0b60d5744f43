"""Pretraining of language models: BERT's masked tokens (Devlin et al. 2019), and Transformer-XL (Dai et al. 2019)."""
