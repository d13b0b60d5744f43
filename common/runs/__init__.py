"""From a command line to a result: configs and presets, run directories, sources, results and their statistics."""
