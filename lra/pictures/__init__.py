"""Classification of colour pictures, with one token per patch. These tasks are not part of Long Range Arena."""
