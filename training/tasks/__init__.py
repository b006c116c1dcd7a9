"""Tasks: the data of clients, a model and its metrics, for example recommendation."""
