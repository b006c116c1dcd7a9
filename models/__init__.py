"""Plain torch models, independent of federated learning and of torchfsl."""

from __future__ import annotations

from models.cnn import CifarCNN, MnistCNN
from models.deepfm import DeepFM, FactorisationMachine, FieldDeepFM
from models.din import DIN
from models.factorisation import NCF, MatrixFactorisation
from models.heterogeneous import (
    VGG7,
    MnistMLP,
    SmallCNN,
    SmallResNet,
    resnet8,
    resnet10,
    resnet_of_pairs,
)
from models.lstm import LSTMLanguageModel
from models.mlp import MLP
from models.sasrec import SASRec
from models.textcnn import TextCNN
from models.transformer import TransformerLanguageModel

__all__ = ["DIN", "MLP", "NCF", "VGG7", "CifarCNN", "DeepFM", "FactorisationMachine",
           "FieldDeepFM", "LSTMLanguageModel", "MatrixFactorisation", "MnistCNN", "MnistMLP",
           "SASRec", "SmallCNN", "SmallResNet", "TextCNN", "TransformerLanguageModel",
           "resnet8", "resnet10", "resnet_of_pairs"]  # fmt: skip
