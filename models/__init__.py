"""Plain torch models. They know nothing of federated learning or of torchfsl."""

from __future__ import annotations

from models.cnn import CifarCNN, MnistCNN
from models.din import DIN
from models.textcnn import TextCNN

__all__ = ["DIN", "CifarCNN", "MnistCNN", "TextCNN"]
