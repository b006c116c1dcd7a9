"""Rows of Sami and Guler, secure submodel aggregation for clients of different sizes."""

from __future__ import annotations

from typing import Final

from scripts.reproduction.papers.row import Row

PAGE, GUIDE = "results/sesa.md", "sesa.md"
MLP = "sesa[costs][MLP][sesa]"

ROWS: Final = [
    Row("Contribution 1", "conventional secure aggregation is unsafe for submodels", "",
        "sums alone give both samples in {sesa-attack[pairs][sums alone][1]} of "
        "{sesa-attack[trials]} pairs", "same", "hiding positions does not stop it either",
        "sesa-attack", PAGE),
    Row("Contribution 2", "first protocol for clients of unlike computation and traffic", "",
        "narrow clients compute less; traffic hardly falls: {bytes[upload]}", "different",
        "shares and relayed updates have one size for all widths", "sesa", PAGE),
    Row("Contribution 3, equation 10", "hides values and submodels", "",
        "one view for all secrets with equal sums", "same",
        "exact over every coin of two small fields", "tests/sesa/test_view.py", GUIDE),
    Row("Contribution 4", "adapts computation and traffic to resources", "",
        "masked update {bytes[masked]}", "same", "the other messages do not adapt", "sesa", PAGE),
    Row("Contribution 5", "accuracy comparable to training without secure aggregation", "",
        "a bit-identical model", "same", "", "tests/sesa/test_engine.py",
        PAGE),
    Row("Equations 1 to 7", "problem: local steps, differences, the sum of survivors", "",
        "the same, with a mean over the cohort", "same", "", "tests/sesa/test_round.py", GUIDE),
    Row("Figure 1, section III", "N = 2: the server reads both samples", "2 of 2",
        "wide {sesa-attack[pairs][positions known][0]}, narrow "
        "{sesa-attack[pairs][positions known][1]} of {sesa-attack[trials]}", "same", "",
        "sesa-attack", PAGE),
    Row("Section III at N = 30", "the attack needs a submodel of one client", "",
        "read in {sesa-attack[cohorts][30][submodels]} of {sesa-attack[rounds]} rounds of 30, in "
        "{sesa-attack[cohorts][6][submodels]} of 6 clients", "different",
        "the paper attacks 2 clients alone. A unit that fires for one sample gives it in "
        "{sesa-attack[cohorts][30][units]} rounds, which no sum prevents", "sesa-attack", PAGE),
    Row("Figure 2, equations 17 to 19", "K = 1 / B_min^2 submodels, of which K_i are trained",
        "K = 16 for B_min = 1/4", "K = 4 for one hidden layer, 16 between two", "different",
        "with one hidden layer, inputs and classes are not cut", "tests/training/test_widths.py",
        GUIDE),
    Row("Section IV, selection", "shards are drawn uniformly, without replacement", "", "the same",
        "same", "", "tests/training/test_widths.py", GUIDE),
    Row("Section IV, offline", "shares of choices and masks, equations 20 to 22", "",
        "one polynomial of masks per client; T shares are seeds", "different",
        "both savings are derived here and not reviewed", "tests/sesa/test_view.py", GUIDE),
    Row("Section IV, online", "masked updates, answers, interpolation, equations 23 to 28", "",
        "exact in {sesa_exact[rounds]} of {sesa_exact[of]} rounds of accuracy runs", "same", "",
        "sesa", PAGE),
    Row("Theorem 1, online", "K_i d / K", "0.636 + 0.159 MB for a full client",
        "{bytes[online]}", "same", "", "sesa", PAGE),
    Row("Theorem 1, offline", "N K_i d / K", "63.6 MB for a full client", "{bytes[shares]}",
        "better", "merged and seeded shares, of one size for all widths", "sesa", PAGE),
    Row("Theorem 1, downloads", "left out of the analysis", "", "{bytes[survivors]}", "weaker",
        "each client receives all masked updates, narrow clients also", "sesa", PAGE),
    Row("Remark 1", "traffic falls with a client's resources", "", "{bytes[upload]}", "weaker",
        "masked updates fall as in the paper, the whole upload by 6 %", "sesa", PAGE),
    Row("Theorem 2", "O(N d) online; N K_i d / K log^2 (K + T) offline", "",
        "{sesa_seconds} of a processor per client", "different",
        "the paper measures no seconds", "sesa", PAGE),
    Row("Theorem 3", "D <= N - (K + T) dropouts", "", "the same, exact", "same",
        "isolation often allows fewer", "tests/sesa/test_round.py", PAGE),
    Row("Theorem 4", "information-theoretic privacy against T clients and the server", "",
        "the code alone", "different",
        "shares travel through the one server and need encryption; masks come from AES",
        "tests/sesa/test_view.py", GUIDE),
    Row("Section VI", "N = 100 in thirds of widths 1, 1/2, 1/4, hidden layer of 200",
        "N = 100", "N = 100, of which 20 participate per round; costs with all 100", "different",
        "the paper names neither rounds nor rates", "sesa", PAGE),
    Row("Section VI", "D = 10 % of the users drop out", "10 %", "10 %", "same", "", "sesa", PAGE),
    Row("Section VI", "T = N / 2 adversaries", "N / 2",
        "N / 2 with K = 4 of 100 clients; refused for 40 or fewer, or K = 16", "weaker",
        "a sum with one honest term would be opened",
        "python -m scripts.generate.isolation_table", GUIDE),
    Row("Section VI", "p = 2^32 - 5", "2^32 - 5", "2^32 - 5", "same", "",
        "tests/sesa/test_round.py", GUIDE),
    Row("Figure 3, MNIST", "comparable accuracy at convergence to FedRolex", "curves only",
        "SESA {speed[random][last]}, FedRolex {speed[rolling][last]} after "
        "{sesa-speed[rounds]} rounds, each at its best rate", "same", "", "sesa-speed", PAGE),
    Row("Figure 3, MNIST", "SESA converges faster than FedRolex", "curves only",
        "rounds to 90 %: SESA {speed[random][to90]}, FedRolex {speed[rolling][to90]}", "same",
        "rates {sesa-speed[rates][random]:g} and {sesa-speed[rates][rolling]:g}, chosen on "
        "pictures held out", "sesa-speed", PAGE),
    Row("Figure 3, MNIST", "comparable accuracy to full clients", "curves only",
        "SESA {speed[random][last]}, full clients {speed[full][last]}", "same", "", "sesa-speed",
        PAGE),
    Row("Figure 3, FEMNIST", "the same three claims", "curves only", "", "not run",
        "no data: FEMNIST. `training.data.leaf` reads its public layout",
        "scripts/reproduce sesa-writers --data DATA"),
    Row("Figure 3, a stand-in for FEMNIST", "the same three claims", "",
        "SESA {writers[random]}, FedRolex {writers[rolling]}, full clients {writers[full]} after "
        "{sesa-writers[rounds]} rounds", "different",
        "{sesa-writers[set]}, of which the paper has no figure", "sesa-writers", PAGE),
    Row("Section VI", "a window of 50 of 200 units needs 150 rounds to cover all", "150",
        "151 positions of the window, the first round included", "same", "",
        "tests/training/test_widths.py", PAGE),
]  # fmt: skip
