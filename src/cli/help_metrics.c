/* docs/metrics.md, from the contract in base/counters.h: `deepseek-edge help --metrics`. */
#include <string.h>

#include "base/counters.h"
#include "cli/options.h"

/* cause="wait" of one row among several of a name: its label's name, then all its values. */
static void print_labels(FILE *out, const struct dse_metric_row *rows, int first, int end)
{
    const char *labels = rows[first].labels;
    if (labels[0] == '\0') return;
    size_t n = strcspn(labels, "=");
    if (labels[n] == '\0') { /* names only */
        fprintf(out, "`%s`", labels);
        return;
    }
    fprintf(out, "`%.*s`: ", (int)n, labels);
    for (int i = first; i < end; i++) {
        const char *value = rows[i].labels + n + 2;
        fprintf(out, "%s%.*s", i > first ? ", " : "", (int)strcspn(value, "\""), value);
    }
}

static void print_rows(FILE *out, const struct dse_metric_row *rows, int count, const char *type)
{
    for (int i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && strcmp(rows[end].name, rows[i].name) == 0;)
            end++;
        fprintf(out, "| `deepseek_edge_%s` | %s | %s | ", rows[i].name, type, dse_unit_name(rows[i].unit));
        print_labels(out, rows, i, end);
        fprintf(out, " | %s |\n", rows[i].help);
    }
}

#define HEAD "\n| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n"

void dse_help_metrics(FILE *out)
{
    fputs("# Metrics\n\nMade by `deepseek-edge help --metrics` from src/base/counters.h; a test compares the two, and "
          "all of it\n"
          "with what a server shows. `GET /metrics` is Prometheus text 0.0.4 and needs no key.\n" HEAD,
          out);
    print_rows(out, dse_counter_rows, DSE_COUNTER_COUNT, "counter");
    print_rows(out, dse_gauge_rows, DSE_GAUGE_COUNT, "gauge");
    print_rows(out, dse_histogram_rows, DSE_HISTOGRAM_COUNT, "histogram");
    print_rows(out, dse_server_metric_rows, DSE_SERVER_METRIC_COUNT, "gauge");
    fputs("\n## Of the machine\n\nRead every two seconds from `/sys` (thermal zones, or hwmon without them; cpufreq; "
          "cooling devices; "
          "the\nfirmware of a Raspberry Pi; the CPU quota of a cgroup v2). Without samples where the machine has "
          "none.\n" HEAD,
          out);
    print_rows(out, dse_machine_metric_rows, DSE_MACHINE_METRIC_COUNT, "gauge");
}
