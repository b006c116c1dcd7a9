"""Known weaknesses of the packages in the servers' image, by pip-audit.

    scripts/release audit         # exit status 1 if there are any, or without data
    scripts/release audit --ci    # passes without data, after a line that tells it

pip-audit asks the package index for data. It ends with the same status if it finds a weakness and
if it reaches no index, so that the report decides.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts.program import ROOT, Options, option, program

LOCKS: Final = ("deploy/requirements.lock", "deploy/build.lock")
CLEAN, WEAK, NO_DATA = range(3)


def verdict(report: str) -> tuple[int, list[str]]:
    """Judge a report of pip-audit.

    Args:
        report: JSON, or nothing if pip-audit could not write it.

    Returns:
        CLEAN, WEAK or NO_DATA, and the lines to print.
    """
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return NO_DATA, ["NO DATA: pip-audit wrote no report, nothing was checked"]
    unknown = [p["name"] for p in packages if "skip_reason" in p]
    weak = [
        f"{p['name']} {p['version']}: {weakness['id']}, "
        f"mended in {', '.join(weakness['fix_versions']) or 'no version yet'}"
        for p in packages
        for weakness in p.get("vulns", [])
    ]
    if weak:
        return WEAK, weak
    if unknown or not packages:
        return NO_DATA, [f"NO DATA for {', '.join(unknown) or 'any package'}"]
    return CLEAN, [f"no known weakness in {len(packages)} packages"]


@program(option("--ci", False, "end well without data"), finds=False)
def main(options: Options) -> int:
    """Run pip-audit on the lock files."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        command = f"{sys.executable} -m pip_audit --require-hashes --disable-pip"
        command += f" --progress-spinner off --format json --output {file}"
        for lock in LOCKS:
            command += f" --requirement {ROOT / lock}"
        subprocess.run(command.split(), check=False)
        status, lines = verdict(file.read_text() if file.exists() else "")
    print(*(f"[audit] {line}" for line in lines), sep="\n")
    return 0 if status == CLEAN or (status == NO_DATA and options.ci) else 1
