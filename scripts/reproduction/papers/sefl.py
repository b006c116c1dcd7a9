"""Rows of Deng, Wang, Meng et al., an aggregator and a key holder for language models."""

from __future__ import annotations

from typing import Final

from scripts.reproduction.papers.row import Row, Verdict

PAGE, GUIDE = "results/sefl.md", "sefl.md"
MODELS: Final = {"lstm-wikitext2": "LSTM", "transformer-wikitext2": "Transformer"}
DROPOUTS: Final = {
    "lstm-wikitext2": {"0": 177.41, "0.25": 178.45, "0.5": 187.64, "0.75": 194.82},
    "transformer-wikitext2": {"0": 263.78, "0.25": 279.81, "0.5": 301.04, "0.75": 310.12},
}
"""Table 1: perplexity by model and share of clients that drop out."""


def _table1() -> list[Row]:
    rows = []
    for model, shares in DROPOUTS.items():
        lstm = model.startswith("lstm")
        for share, value in shares.items():
            whole = shares["0"]
            loss = f" ({100 * (value / whole - 1):+.1f} %)" if share != "0" else ""
            verdict: Verdict = "weaker" if lstm else "different"
            why = (
                "nothing learnt beyond frequencies of words" if lstm
                else "smaller model, 8,192 words, no noise; the loss by dropouts compares"
            )  # fmt: skip
            rows.append(
                Row(
                    f"Table 1, {MODELS[model]}, {100 * float(share):g} %", "test perplexity",
                    f"{value}{loss}", f"{{perplexity1[{model}][{share}]}}", verdict, why,
                    "sefl-table1", PAGE,
                )
            )  # fmt: skip
    return rows


def _figure4() -> list[Row]:
    rows = []
    for model, name in MODELS.items():
        for block in (4, 8, 16, 32):
            rows.append(
                Row(
                    f"Figure 4, {name}, blocks of {block}", "perplexity and time by block size",
                    "curves only", f"{{blocks4[{model}][{block}]}}", "weaker",
                    "blocks cost perplexity in runs without noise", "sefl-figure4", PAGE,
                )
            )  # fmt: skip
    return rows


ROWS: Final = [
    Row("Contribution 1", "no trusted entity is needed", "",
        "both servers follow the protocol and do not collude", "different",
        "a malicious aggregator has anything opened (`python -m scripts.attacks.sefl_limits`)",
        "tests/security/test_sefl_view.py", GUIDE),
    Row("Contribution 2", "correct although 75 % of the clients drop out", "75 %",
        "{sefl_exact[rounds]} of {sefl_exact[of]} rounds exact, 0 to 75 % dropouts", "same", "",
        "sefl-table1", PAGE),
    Row("Contribution 3", "2 l - 1 values instead of l^2 per block", "2 l - 1", "2 l - 1", "same",
        "", "tests/training/test_hankel.py", PAGE),
    Row("Abstract", "up to 13.7 times less time", "13.7x", "{papersize[gain]}", "better",
        "client seconds at the paper's LSTM size, tables also in blocks of 32; with blocks in the "
        "layers alone {papersize[layers]}", "sefl-tablepapersize", PAGE),
    Row("Abstract", "accuracy similar to or better than existing private FL", "",
        "{figure3[whole]}", "same", "unpruned SEFL against CDP-FL, see Figure 3", "sefl-figure3",
        PAGE),
    Row("Figure 1, section 3.1", "workflow: encrypt, add, mask, decrypt, 2PC with noise", "",
        "encrypt, add, mask, decrypt, unmask", "different",
        "the garbled circuit is left out: the aggregator takes off its own mask, each server adds "
        "its noise to its part", "tests/sefl/test_round.py", GUIDE),
    Row("Section 2", "Gaussian mechanism with sensitivity S_f", "",
        "discrete Gaussian; `l2_bound` clips updates", "better",
        "the paper bounds no update, so that its noise guarantees nothing",
        "tests/sefl/test_privacy.py", GUIDE),
    Row("Section 2", "additively homomorphic encryption", "", "BFV of SEAL", "same", "",
        "tests/sefl/test_vectors.py", GUIDE),
    Row("Section 3.1", "a weighted mean by n_j", "", "weights per client, exact", "same", "",
        "tests/sefl/test_round.py", GUIDE),
    Row("Section 3.1", "neither server learns the exact sum", "",
        "holds only with `noise_sigma`", "weaker", "the default has no noise",
        "tests/sefl/test_privacy.py", GUIDE),
    Row("Section 3.1", "trains accurately if 10 % of the clients contribute", "10 %",
        "{tenth}", "same", "8 of 100 clients per round", "sefl-table1", PAGE),
    Row("Section 3.1", "a threshold L of updates", "L", "`min_clients`", "same", "",
        "tests/sefl/test_round.py", GUIDE),
    Row("Figure 2", "sparse rows cannot be added encrypted, blocks can", "",
        "blocks are added as they are", "same", "", "tests/training/test_hankel.py", PAGE),
    Row("Section 3.2", "downloads and uploads are symmetric", "",
        "{sefl-tablecosts[rows][sefl][upload_bytes]:size} up, "
        "{sefl-tablecosts[rows][sefl][download_bytes]:size} down", "different",
        "uploads are ciphertexts, downloads are the model in the clear", "sefl-tablecosts", PAGE),
    Row("Theorem 1", "a pruned subnetwork approximates any network", "",
        "not used", "different", "it is about pruning masks and not about block-Hankel matrices; "
        "its proof states the inequality the wrong way round", "tests/training/test_hankel.py",
        GUIDE),
    Row("Section 3.2", "pruning is as effective as no pruning", "",
        "blocks of 8 in all matrices: {blocks4[lstm-wikitext2][8]}", "weaker",
        "perplexity rises with the block size", "sefl-figure4", PAGE),
    Row("Section 4", "LSTM and Transformer of width 200 on WikiText-2", "width 200",
        "width 64, 8,192 words; costs at width 200", "different",
        "over 4 hours: an epoch at width 200 takes up to 45 minutes of a core",
        "sefl-tablepapersize", PAGE),
    Row("Section 4", "8 GPUs", "8 GPUs", "2 cores", "different", "torchfsl's runs use no GPU",
        "sefl-table1", PAGE),
    Row("Figure 3", "unpruned SEFL is as accurate as CDP-FL", "curves only", "{figure3[whole]}",
        "same", "", "sefl-figure3", PAGE),
    Row("Figure 3, LSTM", "pruned SEFL is up to 11 % better than CDP-FL", "11 %",
        "{figure3[lstm-wikitext2]}", "weaker", "blocks of 8 in all matrices", "sefl-figure3", PAGE),
    Row("Figure 3, Transformer", "pruned SEFL is up to 15 % better than CDP-FL", "15 %",
        "{figure3[transformer-wikitext2]}", "weaker", "blocks of 8 in all matrices",
        "sefl-figure3", PAGE),
    Row("Section 4.1", "fewer values take less noise, which explains the gain", "",
        "{figure3[rise]}", "different", "noise raises the perplexity of blocks more",
        "sefl-figure3", PAGE),
    Row("Section 4.1", "elapsed time is the average of 10 runs", "10 runs",
        "quickest of 3, processor seconds", "different", "others use the same cores",
        "sefl-figure4", PAGE),
    *_figure4(),
    Row("Figure 4", "time improves up to 13.7 times over no blocks", "13.7x",
        "{papersize[gain]}", "better", "at the paper's size of the LSTM",
        "sefl-tablepapersize", PAGE),
    Row("Figure 4, LSTM", "best case 19.3 % better perplexity than without blocks", "-19.3 %",
        "{best4[lstm-wikitext2]}", "weaker", "no block size improves it", "sefl-figure4", PAGE),
    Row("Figure 4, Transformer", "best case 12.8 % better", "-12.8 %",
        "{best4[transformer-wikitext2]}", "weaker", "no block size improves it", "sefl-figure4",
        PAGE),
    *_table1(),
    Row("Section 4.1", "25 % dropouts cost 0.5 % (LSTM) and 5 % (Transformer)", "0.6 %, 6.1 %",
        "{dropped[0.25]}", "better", "the printed table gives 0.6 and 6.1 %", "sefl-table1", PAGE),
    Row("Section 4.1", "75 % dropouts add 17.41 and 46.34 to the perplexity", "+17.41, +46.34",
        "{dropped[0.75]}", "better", "fewer rounds and another model", "sefl-table1", PAGE),
    Row("Conclusion", "comparable accuracy and much less time", "", "see Figures 3 and 4",
        "different", "less time holds, accuracy falls", "sefl-figure4", PAGE),
]  # fmt: skip
