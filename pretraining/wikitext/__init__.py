"""Language models of WikiText: one long stream, read segment after segment with a memory."""
