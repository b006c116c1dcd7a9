"""What a developer of torchfsl runs; the people's commands are the files without an ending."""
