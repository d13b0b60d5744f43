"""Everything between tokens and scores but attention: blocks, norms, encoder and decoder, BERT; and looks inside."""
