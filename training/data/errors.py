"""The error of loaders of images and texts."""

from torchfsl.errors import Error


class DataError(Error, ValueError):
    """A data source cannot be used. The message names another one."""

    code = "data"
