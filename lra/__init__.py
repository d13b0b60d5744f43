"""Long Range Arena (Tay et al. 2021): classification of long sequences. And classification of pictures by patches."""
