"""The ways in which a run sums its updates, behind `torchfsl.submodel.Aggregation`."""
