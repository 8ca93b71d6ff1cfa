"""The metric contract against a live server: docs/metrics.md, /metrics as Prometheus' own parser reads it, vLLM's names,
and the dashboard and alert rules of deploy/."""
import glob
import json
import os
import pathlib
import re
import subprocess

import promql_parser
import pytest
import yaml
from conftest import Server
from prometheus_client.parser import text_string_to_metric_families

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
SUFFIXES = {"counter": "_total", "gauge": "", "histogram": ""}
MACHINE = {  # what must have samples, and where Linux keeps it
    "temperature_celsius": ["/sys/class/thermal/thermal_zone*/temp", "/sys/class/hwmon/hwmon*/temp*_input"],
    "cpu_frequency_hertz": ["/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq"],
}


def contract():
    """Rows of the table: name -> (type, unit, {label: values or None})."""
    rows = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if not line.startswith("| `"):
            continue
        name, kind, unit, labels, meaning = (cell.strip() for cell in line.strip("|").split("|"))
        parsed = {}
        if ": " in labels:
            label, values = labels.split(": ")
            parsed[label.strip("`")] = set(values.split(", "))
        elif labels:
            parsed = {label: None for label in labels.strip("`").split(",")}
        assert name not in rows and meaning, line
        rows[name.strip("`")] = kind, unit, parsed
    return rows


def families(server):
    text = server.get("/metrics").body.decode("utf-8", "strict")
    return {family.name: family for family in text_string_to_metric_families(text)}, text


@pytest.fixture(scope="module")
def used():
    """A server under vLLM's names too that has done a bit of everything."""
    server = Server("--metrics-compat", "vllm", "--max-concurrent", "2", "--served-model-name", 'a"b\\c',
                    "--max-model-len", "512")
    server.chat(max_tokens=5)
    server.chat(max_tokens=4, n=2, temperature=1)
    assert server.post(CHAT, {"messages": []}).status == 400
    assert server.get("/nowhere").status == 404
    yield server
    assert server.stop() == 0, "".join(server.lines)


def test_the_documented_contract_is_that_of_the_program():
    shown = subprocess.run([os.environ["DSE_BINARY"], "help", "--metrics"], capture_output=True, text=True, check=True)
    assert shown.stdout == (ROOT / "docs" / "metrics.md").read_text()


def test_names_follow_the_conventions_of_prometheus():
    for name, (kind, unit, _) in contract().items():
        assert re.fullmatch(r"deepseek_edge_[a-z0-9_]+", name)
        assert name.endswith("_total") == (kind == "counter"), name
        if unit in ("seconds", "bytes", "tokens", "celsius", "hertz", "watts"):
            assert unit in name, name


def test_every_row_of_the_contract_is_shown(used):
    found, text = families(used)
    rows = contract()
    for name, (kind, _, labels) in rows.items():
        family = found[name.removesuffix("_total") if kind == "counter" else name]
        assert family.type == kind and family.documentation, name
        short = name.removeprefix("deepseek_edge_")
        machine = short in ("temperature_celsius", "cpu_frequency_hertz", "power_watts", "throttled")
        if not machine or any(glob.glob(pattern) for pattern in MACHINE.get(short, [])):
            assert family.samples, name
        seen = {}
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(labels), sample
            assert sample.value >= 0 or short == "temperature_celsius", sample
            for label, value in sample.labels.items():
                seen.setdefault(label, set()).add(value)
        for label, values in labels.items():
            assert values is None or seen[label] == values, (name, seen)
    # nothing beyond it, each metric once, each series once
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert {name for name in shown if not name.startswith("vllm:")} == set(rows)
    heads = [line for line in text.splitlines() if line.startswith("# ")]
    assert len(heads) == len(set(heads)) == 2 * len(shown)
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_histograms_are_cumulative_and_complete(used):
    found, _ = families(used)
    for family in found.values():
        if family.type != "histogram":
            continue
        buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
        assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
        assert [value for _, value in buckets] == sorted(value for _, value in buckets)
        assert [s.value for s in family.samples if s.name.endswith("_count")] == [buckets[-1][1]]
        assert [s.name for s in family.samples].count(family.name + "_sum") == 1


def value(server, name, **labels):
    found, _ = families(server)
    for family in found.values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"no sample {name} {labels}")


def test_counts_are_those_of_the_answers(start):
    server = start()
    one = server.chat(max_tokens=7)["usage"]
    two = server.chat(max_tokens=3, n=2, temperature=1)["usage"]
    p = "deepseek_edge_"
    assert value(server, p + "generated_tokens_total") == one["completion_tokens"] + two["completion_tokens"]
    computed = value(server, p + "prompt_tokens_total") + value(server, p + "prefix_cache_hit_tokens_total")
    assert computed == one["prompt_tokens"] + two["prompt_tokens"]
    finished = [value(server, p + "choices_finished_total", reason=reason) for reason in ("stop", "length")]
    assert sum(finished) == 3
    assert value(server, p + "requests_total") == value(server, p + "requests_finished_total") == 2
    assert value(server, p + "time_to_first_token_seconds_count") == 2
    assert value(server, p + "inter_token_latency_seconds_count") == one["completion_tokens"] + two["completion_tokens"] - 3
    for name, sum_ in (("request_prompt_tokens", one["prompt_tokens"] + 2 * two["prompt_tokens"]),
                       ("request_generated_tokens", one["completion_tokens"] + two["completion_tokens"])):
        assert (value(server, p + name + "_count"), value(server, p + name + "_sum")) == (3, sum_)
    assert value(server, p + "request_generated_tokens_bucket", le="5") == 2
    assert value(server, p + "prefill_seconds_count") == value(server, p + "decode_seconds_count") == 3
    assert 0 < value(server, p + "prefill_seconds_sum") and 0 < value(server, p + "decode_seconds_sum")
    assert value(server, p + "request_seconds_count") == value(server, p + "queue_seconds_count") == 2
    busy = sum(value(server, p + "step_seconds_total", cause=cause)
               for cause in ("schedule", "prefill", "decode", "recompute", "sampling", "delivery"))
    # the batch is formed before, and the last step ends after, what a request counts as its own time
    assert 0 < busy <= value(server, p + "request_seconds_sum") + 0.25
    assert 0 < value(server, p + "model_load_seconds") < value(server, p + "uptime_seconds")


@pytest.mark.parametrize("status,cause", [
    (400, lambda s: s.post(CHAT, "{")),
    (404, lambda s: s.get("/nothing/here")),
    (405, lambda s: s.get(CHAT)),
    (403, lambda s: s.get("/health", headers={"Host": "elsewhere.example"})),
    (431, lambda s: s.get("/health", headers={"X-Big": "v" * 40000})),
    (413, lambda s: s.post(CHAT, b"x" * (9 << 20))),
])
def test_errors_are_counted_by_status(server, status, cause):
    before = value(server, "deepseek_edge_errors_total", code=str(status))
    assert cause(server).status == status
    assert value(server, "deepseek_edge_errors_total", code=str(status)) == before + 1


def test_vllm_names_are_shown_when_asked_for(used, server):
    found, _ = families(used)
    ours = {name: family for name, family in found.items() if name.startswith("vllm:")}
    # as vLLM's V1 engine names them (vllm/v1/metrics/loggers.py)
    expected = {"num_requests_running": "gauge", "num_requests_waiting": "gauge", "kv_cache_usage_perc": "gauge",
                "prompt_tokens": "counter", "generation_tokens": "counter", "num_preemptions": "counter",
                "prefix_cache_queries": "counter", "prefix_cache_hits": "counter",
                "spec_decode_num_draft_tokens": "counter", "spec_decode_num_accepted_tokens": "counter",
                "request_success": "counter", "time_to_first_token_seconds": "histogram",
                "inter_token_latency_seconds": "histogram", "time_per_output_token_seconds": "histogram",
                "request_time_per_output_token_seconds": "histogram", "e2e_request_latency_seconds": "histogram",
                "request_queue_time_seconds": "histogram", "request_prefill_time_seconds": "histogram",
                "request_decode_time_seconds": "histogram", "request_prompt_tokens": "histogram",
                "request_generation_tokens": "histogram", "request_max_num_generation_tokens": "histogram",
                "gpu_cache_usage_perc": "gauge"}
    assert {name: ours["vllm:" + name].type for name in expected} == expected
    for family in ours.values():
        for sample in family.samples:
            assert sample.labels["model_name"] == 'a"b\\c', sample
    reasons = {s.labels["finished_reason"] for s in ours["vllm:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "error"}
    assert value(used, "vllm:generation_tokens_total") == value(used, "deepseek_edge_generated_tokens_total")
    assert value(used, "vllm:prompt_tokens_total") == sum(
        value(used, "deepseek_edge_" + name) for name in ("prompt_tokens_total", "prefix_cache_hit_tokens_total"))
    assert b"vllm:" not in server.get("/metrics").body


# ---- deploy/

def metric_names(expression):
    """Names of the series that a query reads, from its syntax tree: a query that Prometheus would refuse fails here."""
    names, left = set(), [promql_parser.parse(expression)]
    while left:
        node = left.pop()
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name)
        elif isinstance(node, promql_parser.MatrixSelector):
            left.append(node.vector_selector)
        else:
            for field in ("args", "expr", "lhs", "rhs"):
                value = getattr(node, field, None)
                left += value if isinstance(value, list) else [value] if value is not None else []
    return names


def dashboard_queries():
    board = json.loads((ROOT / "deploy" / "grafana" / "deepseek-edge.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.search(r"label_values\((.*), \w+\)", variable["query"]).group(1)


def alert_queries():
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"] and rule["labels"]["severity"] in ("warning", "critical"), rule
            yield rule["alert"], rule["expr"]


def series(found):
    """Names and labels of all that a server shows; metrics without samples (sensors) by their head."""
    seen = {}
    for family in found.values():
        if not family.samples:
            seen[family.name] = set(next(iter(contract()[family.name][2:])))
        for sample in family.samples:
            seen.setdefault(sample.name, set()).update(sample.labels)
    return seen


@pytest.mark.parametrize("queries", [dashboard_queries, alert_queries])
def test_queries_name_only_metrics_that_a_server_shows(used, queries):
    seen = series(families(used)[0])
    count = 0
    for title, expression in queries():
        for variable, text in (("$__rate_interval", "5m"), ("$instance", "x"), ("$__range", "1h")):
            expression = expression.replace(variable, text)
        names = metric_names(expression)
        assert names, (title, expression)
        for name in names:
            assert name in seen, (title, name)
        for name, matchers in re.findall(r"(deepseek_edge_\w+)\{([^}]*)\}", expression):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", matchers))
            assert labels - {"instance", "job"} <= seen[name], (title, name, labels)
        for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
            labels = {label.strip() for label in grouped.split(",")} - {"instance", "job"}
            assert any(labels <= seen[name] for name in names), (title, labels)
        count += 1
    assert count >= 8


def test_the_dashboard_shows_every_metric_of_the_contract_that_moves():
    text = (ROOT / "deploy" / "grafana" / "deepseek-edge.json").read_text()
    for name, (kind, _, _) in contract().items():
        if kind in ("counter", "histogram"):
            assert name in text, name
