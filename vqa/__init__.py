"""Visual question answering: several detectors' views of a picture joined by attention (P2, VQA v2)."""
