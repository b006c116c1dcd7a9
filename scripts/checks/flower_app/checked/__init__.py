"""An app whose clients record what they send, and fail where they are told to."""
