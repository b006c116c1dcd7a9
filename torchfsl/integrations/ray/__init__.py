"""One party's evaluation over many machines, on a cluster of Ray.

Read `cuts` (which trees and rows are whose), `packing` (a window of reports in one array), `sums`,
`tables` and `shard` (what one shard computes), `grid` (how the front reaches shards; those of this
process are the reference), `front` (its windows and questions), `evaluator` (all of it as a
server's `Evaluator`), `engine` (`torchfsl serve --engine`), `estimate` (what shards take) and
`actors` (shards in Ray; it alone needs the extra `ray`).

Invariant: shares, folds and answers are those of one process, byte for byte, whatever the number of
shards and whichever of them are lost on the way; or the round is not opened.
"""
