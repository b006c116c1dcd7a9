"""Rows of "Practical and Private Heterogeneous Federated Learning"."""

from __future__ import annotations

from typing import Final

from scripts.reproduction import privhfl_paper as paper
from scripts.reproduction.papers.row import Row, Verdict

PAGE, GUIDE = "results/privhfl.md", "privhfl.md"
NO_DATA: Final = {"SVHN": "no data: SVHN", "Tiny ImageNet": "no data: Tiny ImageNet"}
SMALLER: Final = "6 clients, networks of 7 to 45 thousand parameters; compare gains"
STUDY_COMMAND: Final = "scripts/reproduce privhfl-studies --dataset cifar10 --data DATA"


def _table1() -> list[Row]:
    rows = []
    for data, values in paper.ACCURACY.items():
        base = paper.BASELINE[data]
        printed = {"baseline": (base,) * 3, **values}
        for key, figures in printed.items():
            name = key if key in ("baseline", "private") else f"mixup {int(key):,}"
            place, claim = f"Table 1, {data}, {name}", "accuracy at C = 0.6, 0.8, 1"
            text = ", ".join(f"{value:.2f}" for value in figures)
            if data in NO_DATA:
                command = f"needs a loader of {data}"
                rows.append(Row(place, claim, text, "", "not run", NO_DATA[data], command))
                continue
            text += f" (gain {figures[2] - base:+.1f})" if key != "baseline" else ""
            ours, verdict = f"{{table1[{key}]}}", "different"
            rows.append(
                Row(place, claim, text, ours, verdict, SMALLER, "privhfl:cifar10-private", PAGE)  # type: ignore[arg-type]
            )
    return rows


def _table2() -> list[Row]:
    rows = []
    for (data, part), values in paper.BATCHES.items():
        text = ", ".join(f"{v:g}" for v in values if v is not None) + " s"
        place = f"Table 2, {data}, {part}"
        claim = f"seconds of {'1,000, 2,500, 5,000' if values[2] else '1,000, 2,500'} queries"
        if part in ("share", "aggregate"):
            why = "inside the seconds of the rows of networks"
            ours = "not measured apart"
            rows.append(Row(place, claim, text, ours, "different", why, "privhfl-costs", PAGE))
            continue
        verdict: Verdict = "better"
        why = "one core; the paper's are of a GPU"
        if data != "CIFAR-10" or part == "VGG-7":
            verdict, why = "weaker", "one core, shared with others, against a GPU"
        source = "privhfl-costs" if data == "CIFAR-10" else "privhfl-tiny"
        rows.append(
            Row(place, claim, text, f"{{queries[{part}]}}", verdict, why, source, PAGE)
        )  # fmt: skip
    return rows


def _table3() -> list[Row]:
    rows = []
    for name, values in paper.PREDICTION.items():
        text = "; ".join(f"{s:g} s, {mb:,.0f} MB" for s, mb in values)
        own = name.startswith("the paper")
        why = "" if own else "its program was not run; torchfsl's figure stands next to it"
        rows.append(
            Row(
                f"Table 3, {name}", "one CIFAR-10 query of VGG-7, ResNet-8, ResNet-10", text,
                "{prediction}", "better", why, "privhfl-costs", PAGE,
            )
        )  # fmt: skip
    return rows


def _table4() -> list[Row]:
    rows = []
    for name, values in paper.MNIST.items():
        text = ", ".join(f"{own:g}" for own, _ in values) + " s; HE-Transformer "
        text += ", ".join(f"{other:g}" for _, other in values) + " s"
        claim = "seconds of batches of 128 to 2,048 on MNIST"
        if name.startswith("CNet1"):
            rows.append(
                Row(
                    f"Table 4, {name}", claim, text, "refused: no squares", "weaker",
                    "the protocol has no product of two shared values", "privhfl-costs", PAGE,
                )
            )  # fmt: skip
            continue
        rows.append(
            Row(
                f"Table 4, {name}", claim, text, f"{{mnist4[{name}]}}", "better",
                "one core; the paper's are of a GPU", "privhfl-costs", PAGE,
            )
        )  # fmt: skip
    return rows


def _table5() -> list[Row]:
    return [
        Row(
            f"Table 5, {lam:g}", "accuracy with one coefficient of mixup", f"{value:.2f}",
            f"{{lambda5[{lam:g}]}}", "different" if lam in (0.1, 0.3, 0.5, 0.7, 0.9) else "to run",
            "MNIST, unless CIFAR-10 is named" if lam in (0.1, 0.3, 0.5, 0.7, 0.9)
            else "minutes per seed; its neighbours ran",
            f"privhfl:mnist-lambda-{lam:g}" if lam in (0.1, 0.3, 0.5, 0.7, 0.9) else STUDY_COMMAND,
            PAGE,
        )
        for lam, value in paper.LAMBDA.items()
    ]  # fmt: skip


def _gain(place: str, claim: str, printed: str, cell: str, verdict: Verdict, why: str) -> Row:
    return Row(place, claim, printed, f"{{gain[{cell}]}}", verdict, why, f"privhfl:{cell}", PAGE)


ROWS: Final = [
    Row("Abstract", "no auxiliary data set is needed", "", "mixup of private pictures", "same", "",
        "privhfl:cifar10-mixup-5000", PAGE),
    Row("Abstract", "up to two orders of magnitude more efficient than prior art", "100x",
        "{less[OT seconds]} less time than CrypTFlow2-OT", "better", "against the printed figures",
        "privhfl-costs", PAGE),
    Row("Introduction", "GPU protocol up to 10 times faster than CPU", "10x", "", "not run",
        "GPU: torchfsl has no code for GPUs", "none", PAGE),
    Row("Introduction", "about 10 % accuracy gains",
        "+10.2, +7.9, +6.2 (SVHN, CIFAR-10, Tiny ImageNet)",
        "{gain[cifar10-mixup-5000]} CIFAR-10, {gain[mnist-mixup-2500]} MNIST", "weaker",
        "5,000 queries; two of six networks each", "privhfl:cifar10-mixup-5000", PAGE),
    Row("Section 2.2", "honest but curious; the server colludes with no client", "",
        "the same assumption", "same", "", "tests/security/test_querying_views.py", GUIDE),
    Row("Section 2.3", "additive sharing in a ring, seeds from Diffie-Hellman", "",
        "the same, AES-128 streams, X25519", "same", "", "tests/privhfl/test_draws.py", GUIDE),
    Row("Figure 1", "train, make queries, ask, retrain", "", "the same four steps", "same", "",
        "tests/training/test_privhfl.py", GUIDE),
    Row("Section 3.2", "mixup with coefficients 0.1 to 0.9", "", "the same", "same", "",
        "tests/training/test_privhfl.py", GUIDE),
    Row("Figure 2, Theorem 1", "sharing a query", "", "the same", "same", "",
        "tests/security/test_querying_views.py", GUIDE),
    Row("Figure 3, Theorem 2", "matrix products", "", "one multiplication per party", "different",
        "own derivation, not reviewed", "tests/privhfl/test_linear.py", GUIDE),
    Row("Figure 4, Theorem 3", "DReLU by z = r x is secure", "",
        "false: 16 of 16 channels of weights are recovered", "different",
        "`secure` compares by one-time tables or trees instead",
        "tests/privhfl/test_published.py", GUIDE),
    Row("Theorem 4", "ReLU is secure", "", "another gate", "different",
        "the paper's rests on Theorem 3", "tests/privhfl/test_gates.py", GUIDE),
    Row("Section 3.3, Theorem 5", "maxima by a tree of comparisons", "", "the same tree", "same",
        "", "tests/privhfl/test_gates.py", GUIDE),
    Row("Figure 5, Theorem 6", "the sum of logits alone is opened", "", "the same", "same",
        "fewer than two answering clients are refused", "tests/privhfl/test_parties.py", GUIDE),
    Row("Section 3.3", "GPU acceleration by CUDA kernels", "", "", "not run",
        "GPU: torchfsl has no code for GPUs", "none", PAGE),
    Row("Section 3.4", "differential privacy is a plug-in", "no figure",
        "no noise on answers", "weaker", "the paper has none either and leaves it to others",
        "tests/privhfl/test_parties.py", GUIDE),
    Row("Section 3.4", "O(n^2) predictions per iteration limit the scale", "",
        "{secure[cifar10]} per run of 6 clients", "same", "", "privhfl:cifar10-secure", PAGE),
    Row("Section 4.1", "50 clients, VGG-7, ResNet-8 and ResNet-10", "50 clients",
        "6 clients; costs at full width", "different",
        "over 4 hours: 50 clients that train 500 epochs take days on two cores",
        "privhfl:cifar10-private", PAGE),
    Row("Section 4.1", "ring of 64 bits, 20 of them fractional", "64, 20",
        "32, 12 by default; 64, 20 also", "different", "exact against the integer twin in both",
        "tests/privhfl/test_end_to_end.py", GUIDE),
    _gain("Figure 6", "mixup is better than private pictures, by iterations", "curves only",
          "cifar10-mixup-5000", "same", "private pictures {gain[cifar10-private]}"),
    *(
        Row(f"Figures 6 and 7, {data}", "the same", "curves only", "", "not run", reason,
            f"needs a loader of {data}")
        for data, reason in NO_DATA.items()
    ),
    *_table1(),
    _gain("Section 4.2", "queries of private pictures gain about 4 points", "+4.2 to +4.8",
          "cifar10-private", "same", ""),
    *(
        Row(f"Section 4.2, {data}", claim, printed, "", "not run", NO_DATA[data],
            f"needs a loader of {data}")
        for data, claim, printed in (
            ("SVHN", "10,000 queries gain 4.65 points over 2,500, 10 over the baseline", "+4.65"),
            ("Tiny ImageNet", "10,000 queries gain 3.23 points over 2,500; the table has 2.23",
             "+3.23"),
        )
    ),
    _gain("Section 4.2", "10,000 mixup queries gain 1.33 points over 2,500 on CIFAR-10", "+1.33",
          "cifar10-mixup-5000", "better", "5,000 queries; 2,500 gain {gain[cifar10-mixup-2500]}"),
    _gain("Section 4.2", "a larger C improves accuracy slightly", "+0.4",
          "cifar10-mixup-2500-C0.6", "same",
          "C = 0.6; C = 0.8 {gain[cifar10-mixup-2500-C0.8]}, C = 1 {gain[cifar10-mixup-2500]}"),
    *(
        Row(f"Figure 7, {name}", "accuracy by queries and architecture", "curves only",
            f"{{by_architecture[{name}]}}", "same", "CIFAR-10, gain at 1,000, 2,500, 5,000",
            "privhfl:cifar10-mixup-5000", PAGE)
        for name in ("VGG-7", "ResNet-8", "ResNet-10")
    ),
    *_table2(),
    Row("Section 4.3", "5,000 queries of VGG-7 in 4.5 minutes", "272 s", "{queries[VGG-7]}",
        "weaker", "one core against a GPU", "privhfl-costs", PAGE),
    *_table3(),
    Row("Section 4.3", "105 to 112 times less time than CrypTFlow2-OT", "105 to 112x",
        "{less[OT seconds]}", "better", "against the printed figures", "privhfl-costs", PAGE),
    Row("Section 4.3", "234 to 269 times less traffic than CrypTFlow2-OT", "234 to 288x",
        "{less[OT bytes]}", "better", "the paper's text leaves ResNet-8's 287.9 out",
        "privhfl-costs", PAGE),
    Row("Section 4.3", "139 to 184 times less time than CrypTFlow2-HE", "139 to 184x",
        "{less[HE seconds]}", "better", "against the printed figures", "privhfl-costs", PAGE),
    Row("Section 4.3", "9.7 to 15 times less traffic than CrypTFlow2-HE", "9.7 to 15x",
        "{less[HE bytes]}", "better", "against the printed figures", "privhfl-costs", PAGE),
    Row("Section 4.3", "1.5 times less time, 2 times less traffic than CryptGPU, on a CPU",
        "1.2 to 1.6x, 1.8 to 2.2x", "{less[GPU seconds]}; {less[GPU bytes]}", "better",
        "against the printed figures", "privhfl-costs", PAGE),
    Row("Figure 8, CPU", "seconds of a query by batch, up to 64", "curves only", "{batches8}",
        "different", "larger batches hardly save time on one core", "privhfl-batches", PAGE),
    Row("Figure 8, GPU", "9.5 times less time on a GPU at 64", "9.5x", "", "not run",
        "GPU: torchfsl has no code for GPUs", "none", PAGE),
    Row("Figure 9, appendix A", "federated and heterogeneous federated learning", "",
        "a schema", "same", "no figures", "tests/training/test_privhfl.py", GUIDE),
    Row("Figure 10", "five kinds of augmented pictures", "", "the same five", "same", "",
        "tests/training/test_privhfl.py", GUIDE),
    Row("Figures 11a, 11b", "expanded samples cover more of the feature space", "pictures only",
        "", "to run", "a picture of features, without a figure to compare", STUDY_COMMAND),
    _gain("Figure 11c, CIFAR-10, noise", "noise hurts", "curves only", "cifar10-noise", "same", ""),
    _gain("Figure 11c, CIFAR-10, flipping", "flipping hurts", "curves only", "cifar10-flip",
          "different", "flipping has 1,000 pictures per client alone"),
    _gain("Figure 11c, CIFAR-10, cutmix", "cutmix helps", "curves only", "cifar10-cutmix", "same",
          ""),
    _gain("Figure 11c, CIFAR-10, cutout", "cutout helps", "curves only", "cifar10-cutout", "same",
          ""),
    Row("Figure 11c, SVHN", "the same four", "curves only", "", "not run", "no data: SVHN",
        "needs a loader of SVHN"),
    *_table4(),
    Row("Appendix B.2", "up to three orders of magnitude faster than HE-Transformer", "1,000x",
        "{orders}", "better", "against the printed figures", "privhfl-costs", PAGE),
    _gain("Figure 12, CIFAR-10, random", "random selection gains 6.57 to 7.22", "+6.6 to 7.2",
          "cifar10-mixup-2500", "weaker", "2,500 queries of smaller networks"),
    _gain("Figure 12, CIFAR-10, margin", "margin sampling gains 0.8 more", "+0.8",
          "cifar10-select-margin", "same", "random {seed0[cifar10-mixup-2500]} with this seed"),
    _gain("Figure 12, CIFAR-10, entropy", "entropy sampling", "curves only",
          "cifar10-select-entropy", "same", "random {seed0[cifar10-mixup-2500]} with this seed"),
    _gain("Figure 12, k-centre", "greedy k-centre sampling", "curves only",
          "mnist-select-k-centre", "different", "MNIST; random {seed0[mnist-mixup-1000]}"),
    _gain("Figure 12, ICD", "informative and diverse sampling", "curves only",
          "mnist-select-icd", "different", "MNIST; random {seed0[mnist-mixup-1000]}"),
    Row("Figure 12, SVHN", "entropy sampling gains 1.44 more", "+1.44", "", "not run",
        "no data: SVHN", "needs a loader of SVHN"),
    _gain("Figure 13, CIFAR-10", "logits not normalised are about 5 points better", "+5",
          "cifar10-probabilities", "different",
          "probabilities instead of logits; logits {seed0[cifar10-mixup-2500]} with this seed"),
    Row("Figure 13, SVHN", "normalisation hardly matters", "curves only", "", "not run",
        "no data: SVHN", "needs a loader of SVHN"),
    Row("Figure 14", "a picture of Dirichlet partitions", "", "the same partitions", "same",
        "no figures", "tests/training/test_privhfl.py", GUIDE),
    *(
        Row(f"Figure 15, alpha {alpha}", "lower alpha, lower accuracy, still a gain",
            "curves only", f"{{alpha[{alpha}]}}", "same",
            "MNIST, 9 clients; worst client: {worst[mnist-alpha-ALPHA]}".replace("ALPHA", alpha),
            f"privhfl:mnist-alpha-{alpha}", PAGE)
        for alpha in ("0.1", "0.5", "100")
    ),
    Row("Figure 15, CIFAR-10", "the same on CIFAR-10", "curves only", "", "to run",
        "minutes per cell",
        "scripts/reproduce privhfl-heterogeneity --dataset cifar10 --data DATA"),
    Row("Figure 15, SVHN", "the same on SVHN", "curves only", "", "not run", "no data: SVHN",
        "needs a loader of SVHN"),
    Row("Figure 16", "more private samples, higher accuracy", "curves only", "{samples}", "same",
        "MNIST, 50, 200 and 400 samples", "privhfl:mnist-samples-400", PAGE),
    Row("Figure 16, CIFAR-10", "the same", "curves only", "{samples_cifar10}", "same",
        "250, 500 and 1,000 samples, accuracy", "privhfl:cifar10-samples-500", PAGE),
    Row("Figure 16, SVHN", "the same", "curves only", "", "not run", "no data: SVHN",
        "needs a loader of SVHN"),
    *_table5(),
    Row("Appendix B.3", "the coefficient of mixup hardly matters", "0.6 points", "{lambda_spread}",
        "different", "MNIST, one seed", "privhfl:mnist-lambda-0.5", PAGE),
    Row("Algorithm 1", "the framework", "", "the same loop", "same", "",
        "tests/training/test_privhfl.py", GUIDE),
    Row("Figure 17", "a network layer by layer", "", "the same order of layers", "same", "",
        "tests/privhfl/test_end_to_end.py", GUIDE),
    Row("Figure 18", "seeds through the server by Diffie-Hellman", "",
        "keys are handed over or vouched for", "different",
        "the paper's exchange is open to the server in the middle",
        "tests/privhfl/test_draws.py", GUIDE),
    Row("Appendix C.3", "margin, entropy, k-centre, ICD", "", "all four", "same", "",
        "tests/training/test_privhfl.py", GUIDE),
    Row("Appendix C.5", "CaPC extended to clients without channels", "no figures", "not built",
        "different", "an analysis of another system", "none", GUIDE),
    Row("Appendix C.6", "ring products on GPUs by floats", "", "", "not run",
        "GPU: torchfsl has no code for GPUs", "none", PAGE),
    Row("Table 6", "properties of eleven systems; this work has all six", "6 of 6", "5 of 6",
        "weaker", "no code for GPUs; model privacy fails in the published protocol",
        "tests/privhfl/test_published.py", "systems.md"),
    Row("Table 7", "rates, batches, epochs: 500 on CIFAR-10, 50 of retraining", "500; 50",
        "until training gains next to nothing; 10 on CIFAR-10, 50 on MNIST", "different",
        "over 4 hours: 500 epochs of 50 clients", "privhfl:cifar10-private", PAGE),
    Row("Figure 19", "mixup pictures show the originals", "", "the same", "same", "no figures",
        "tests/training/test_privhfl.py", GUIDE),
    Row("Figure 20", "shares look like noise", "", "uniform shares", "same", "no figures",
        "tests/security/test_querying_views.py", GUIDE),
]  # fmt: skip
