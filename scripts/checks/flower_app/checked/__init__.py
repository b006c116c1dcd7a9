"""An app whose clients record their updates, and fail as the run's configuration demands."""
