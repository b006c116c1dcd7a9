"""What loaders of images and texts raise."""


class DataError(ValueError):
    """A data source cannot be used. The message says what to pass instead."""
