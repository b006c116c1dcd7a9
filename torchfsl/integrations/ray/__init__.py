"""One party's evaluation over many machines, on a cluster of Ray.

Read first `cuts` (the trees and rows of each shard) and `packing` (a window of reports in one
array). `sums`, `tables` and `shard` are the computation of one shard. `grid` connects the front to
shards; shards in this process are the reference. `front` has the windows and questions, and
`evaluator` is all of it as a server's `Evaluator`. `engine` is for `torchfsl serve --engine`.
`estimate` gives the cost of shards. `actors` has shards in Ray, and only it needs the extra `ray`.

Invariant: shares, folds and answers are those of one process, byte for byte. This holds for any
number of shards, whichever of them are lost on the way. Otherwise the round is not opened.
"""
