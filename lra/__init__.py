"""Long Range Arena: classification of long sequences (Tay et al. 2021)."""
