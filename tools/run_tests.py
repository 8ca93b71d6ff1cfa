#!/usr/bin/env python3
"""Runs all tests of a build folder: the C tests through Meson, then the Python tests of tests/cli, tests/api and
tests/web in a virtual environment of their own. Ends with the line `N passed, N failed`. A skipped test counts as
failed: what was not tried is not known to work. Only tests/web, which needs Chromium, is left out as a whole where there
is none, and that is said.

usage: run_tests.py BUILD_FOLDER [web | python]     web: only tests/web, which then must be possible
       python: runs nothing, prints the interpreter of the virtual environment
DSE_TEST_PATIENCE=N: each C test may take N times as long, where all are slower.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import venv
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUZZ_REPLAY = "fuzz / replay "


def count_c_cases(row, text):
    """Cases inside an executable. One that names none has not tested anything, but for the replay of a fuzz corpus."""
    good = sum(int(n) for n in re.findall(r"\[  PASSED  \] (\d+) test", text))
    bad = sum(int(n) for n in re.findall(r"\[  (?:FAILED |SKIPPED) \] (\d+) test", text))
    if row["result"] == "OK" and good + bad == 0:
        return (1, 0) if FUZZ_REPLAY in row["name"] else (0, 1)
    return good, max(bad, 1) if row["result"] != "OK" else bad


def run_c_tests(build):
    started = time.monotonic()
    print("C tests …", flush=True)
    log = build / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    result = subprocess.run(["meson", "test", "-C", str(build), "--no-rebuild", "--quiet", "--timeout-multiplier",
                             os.environ.get("DSE_TEST_PATIENCE", "1")], check=False)
    passed = failed = 0
    for line in log.read_text(errors="replace").splitlines() if log.is_file() else []:
        row = json.loads(line)
        text = row.get("stdout", "") + row.get("stderr", "")
        good, bad = count_c_cases(row, text)
        if bad:
            print(f"--- FAILED {row['name']} ({row['result']})\n{text[-6000:]}")
        passed, failed = passed + good, failed + bad
    # Meson may end without a row for every test, when it is interrupted for one.
    if passed + failed == 0 or result.returncode != 0:
        failed = max(failed, 1)
    print(f"C tests: {passed} passed, {failed} failed in {time.monotonic() - started:.0f} s", flush=True)
    return passed, failed


def chromium():
    return os.environ.get("DSE_CHROMIUM") or shutil.which("chromium")


def python_environment(build, suites):
    """Creates build/venv and installs what the suites require and it lacks; all anew when a version has changed."""
    folder = build.parent / "venv"
    python = folder / "bin" / "python"
    lists = [path for path in (ROOT / "tests" / suite / "requirements.txt" for suite in suites) if path.is_file()]
    wanted = dict(line.split("==") for path in lists for line in path.read_text().split())
    stamp = folder / "requirements.txt"
    there = dict(line.split("==") for line in stamp.read_text().split()) if stamp.is_file() else {}
    anew = not there or any(there.get(name, version) != version for name, version in wanted.items())
    lacks = [f"{name}=={version}" for name, version in wanted.items() if anew or name not in there]
    if lacks:
        print(f"installing the packages of the Python tests in {folder} …", flush=True)
        if anew:
            venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *lacks], check=True)
        stamp.write_text("".join(f"{name}=={version}\n" for name, version in (wanted if anew else there | wanted).items()))
    return python


def count_python_cases(report, returncode):
    """Numbers of a JUnit file. Without one, or with none that failed though pytest did, something counts as failed: it
    crashed, was interrupted or found no test."""
    try:
        suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
        total, *bad = (int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped"))
    except (OSError, xml.etree.ElementTree.ParseError):
        return 0, 1
    return max(total - sum(bad), 0), max(sum(bad), 1 if returncode != 0 or total == 0 else 0)


def run_python_tests(build, suites):
    started = time.monotonic()
    try:
        # The web tests start servers as those of the API do, and run the page's snippets with the same client.
        python = python_environment(build, [*suites, "api"] if suites == ["web"] else suites)
        model = subprocess.run([sys.executable, ROOT / "tools" / "fetch_model.py"], check=True, stdout=subprocess.PIPE,
                               text=True).stdout.strip()
    except subprocess.CalledProcessError as error:
        print(f"the Python tests cannot start: {error}", flush=True)
        return 0, 1
    environment = dict(os.environ, DSE_BINARY=str(build / "src" / "cli" / "deepseek-edge"), DSE_TEST_MODEL=model,
                       DSE_TEST_BUILD=str(build), DSE_TEST_DATA=str(ROOT / "tests" / "data"),
                       DSE_TEST_UNPACKED=str(build / "tests" / "unpacked"), PYTHONDONTWRITEBYTECODE="1",
                       PYTHONUNBUFFERED="1")
    passed = failed = 0
    for folder in suites:
        print(f"Python tests in tests/{folder} …", flush=True)
        report = build / f"pytest-{folder}.xml"
        report.unlink(missing_ok=True)
        result = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
                                 ROOT / "tests" / folder], env=environment)
        good, bad = count_python_cases(report, result.returncode)
        passed, failed = passed + good, failed + bad
    print(f"Python tests: {passed} passed, {failed} failed in {time.monotonic() - started:.0f} s", flush=True)
    return passed, failed


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    started = time.monotonic()
    only_web = sys.argv[2:] == ["web"]
    print_python = sys.argv[2:] == ["python"]
    suites = ["web"] if only_web else ["cli", "api", "web"]
    skipped = "" if chromium() else "tests/web SKIPPED: no chromium, the page was not tried (make test-web installs it)"
    results = []
    if skipped and only_web:
        sys.exit(skipped)
    if skipped:
        suites.remove("web")
    if print_python:
        with contextlib.redirect_stdout(sys.stderr):
            python = python_environment(build, ["api", "fuzz"])
        print(python)
        return
    try:
        if not only_web:
            results.append(run_c_tests(build))
        results.append(run_python_tests(build, suites))
    except KeyboardInterrupt:
        print("\ninterrupted: what was not run counts as failed")
        results.append((0, 1))
    passed, failed = (sum(column) for column in zip(*results))
    if skipped:
        print(skipped)
    print(f"{'' if only_web else 'all '}tests in {time.monotonic() - started:.0f} s:\n{passed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
