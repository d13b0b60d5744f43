"""Documents that tests prepare."""

TEXTS = [
    "Call me Ishmael. Some years ago I went to sea! Whenever it is damp, I go.",
    "There now is your city.\nRight and left the streets take you waterward",
    "Once more. Say you are in the country; in some high land of lakes? Take almost any path.",
] * 6
