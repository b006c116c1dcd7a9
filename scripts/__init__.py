"""Programs for developers of torchfsl; users' commands are the files without a suffix."""
