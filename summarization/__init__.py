"""Headline generation: encoder-decoder Transformers on Gigaword, from scratch and from BERT."""
