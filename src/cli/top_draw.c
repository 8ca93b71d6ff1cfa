/* Header, sparkline, bars and rows of `top`. See top_draw.h; called by top.c. */
#include "cli/top_draw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "cli/streams.h"
#include "cli/terminal.h"

#define SPARK_COLUMNS 40
#define BAR_COLUMNS   30
#define MAX_ROWS      200

/* A number or a text by its path of names, "requests.running"; 0 and "" when it is not there. */
static const json_t *find(const json_t *root, const char *path)
{
    char name[64];
    while (root != NULL && *path != '\0') {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        root = json_object_get(root, name);
        path += n;
        path += *path == '.';
    }
    return root;
}

static double number(const json_t *root, const char *path)
{
    return json_number_value(find(root, path));
}

static const char *text(const json_t *root, const char *path)
{
    const char *value = json_string_value(find(root, path));
    return value != NULL ? value : "";
}

const char *dse_top_sort_name(enum dse_top_sort sort)
{
    static const char *const names[] = {"age", "speed", "context"};
    return names[sort];
}

/* Mean of a histogram between two looks; -1: nothing was observed. */
static double mean_between(const struct dse_top_view *view, const char *sum, const char *count)
{
    double n = number(view->now, count) - number(view->before, count);
    return n > 0 ? (number(view->now, sum) - number(view->before, sum)) / n : -1;
}

static void remember(struct dse_top_history *history, double value)
{
    if (history->n == DSE_TOP_HISTORY) {
        memmove(history->values, history->values + 1, (DSE_TOP_HISTORY - 1) * sizeof *history->values);
        history->n--;
    }
    history->values[history->n++] = value;
}

static double first_token_seconds(const struct dse_top_view *view)
{
    return mean_between(view, "time_to_first_token_seconds.sum", "time_to_first_token_seconds.count");
}

void dse_top_remember(struct dse_top_view *view)
{
    double seconds = number(view->now, "uptime_seconds") - number(view->before, "uptime_seconds");
    double tokens = number(view->now, "tokens.generated_total") - number(view->before, "tokens.generated_total");
    double rate = view->before != NULL && seconds > 0 && tokens >= 0 ? tokens / seconds
                                                                     : number(view->now, "tokens.generated_per_second");
    remember(&view->speed, rate);
    remember(&view->first_token, first_token_seconds(view));
}

/* ---- lines ---------------------------------------------------------------------------------------------------- */

/* Columns of a terminal that a character takes. Terminals differ: of two widths the larger one, as a line that is too
 * short harms nothing and one that is too long breaks the picture. */
static int columns_of(uint32_t code)
{
    static const struct {
        uint32_t first, last;
        int columns;
    } ranges[] = {
        {0x0300, 0x036F, 0},   {0x0483, 0x0489, 0}, {0x0591, 0x05BD, 0},   {0x064B, 0x065F, 0},   {0x0E34, 0x0E3A, 0},
        {0x0E47, 0x0E4E, 0},   {0x1100, 0x115F, 2}, {0x1AB0, 0x1ACE, 0},   {0x1DC0, 0x1DFF, 0},   {0x200B, 0x200F, 0},
        {0x202A, 0x202E, 0},   {0x2060, 0x2064, 0}, {0x20D0, 0x20F0, 0},   {0x231A, 0x231B, 2},   {0x2329, 0x232A, 2},
        {0x23E9, 0x23F3, 2},   {0x25FD, 0x25FE, 2}, {0x2600, 0x27BF, 2},   {0x2B1B, 0x2B55, 2},   {0x2E80, 0x3029, 2},
        {0x302A, 0x302D, 0},   {0x302E, 0x3098, 2}, {0x3099, 0x309A, 0},   {0x309B, 0xA4CF, 2},   {0xA960, 0xA97F, 2},
        {0xAC00, 0xD7A3, 2},   {0xF900, 0xFAFF, 2}, {0xFE10, 0xFE1F, 2},   {0xFE20, 0xFE2F, 0},   {0xFE30, 0xFE6F, 2},
        {0xFF00, 0xFF60, 2},   {0xFFE0, 0xFFE6, 2}, {0x16FE0, 0x1B2FF, 2}, {0x1F000, 0x1FAFF, 2}, {0x20000, 0x3FFFD, 2},
        {0xE0100, 0xE01EF, 0},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && code >= ranges[i].first; i++)
        if (code <= ranges[i].last) return ranges[i].columns;
    return 1;
}

void dse_top_put_text(struct dse_buffer *out, const char *text, int columns)
{
    struct dse_buffer safe;
    dse_buffer_init(&safe, DSE_MEM_MISC, 262144);
    dse_put_safely(&safe, text, strcspn(text, "\n"));
    const char *at = dse_buffer_text(&safe);
    size_t end = 0;
    for (size_t used; end < safe.length; end += used)
        if ((columns -= columns_of(dse_utf8_decode(at + end, safe.length - end, &used))) < 0) break;
    dse_buffer_append(out, at, end);
    dse_buffer_deinit(&safe);
}

static void put_line(const struct dse_top_view *view, struct dse_buffer *out, const char *line)
{
    dse_top_put_text(out, line, view->columns);
    dse_buffer_putc(out, '\n');
}

static void put_format(const struct dse_top_view *view, struct dse_buffer *out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void put_format(const struct dse_top_view *view, struct dse_buffer *out, const char *format, ...)
{
    struct dse_buffer line;
    va_list arguments;
    dse_buffer_init(&line, DSE_MEM_MISC, 65536);
    va_start(arguments, format);
    dse_buffer_vprintf(&line, format, arguments);
    va_end(arguments);
    put_line(view, out, dse_buffer_text(&line));
    dse_buffer_deinit(&line);
}

static const char *duration(double seconds, char out[32])
{
    if (seconds < 60)
        snprintf(out, 32, "%.1f s", seconds);
    else if (seconds < 3600)
        snprintf(out, 32, "%dm%02ds", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(out, 32, "%dh%02dm", (int)(seconds / 3600), (int)(seconds / 60) % 60);
    return out;
}

/* A history in eight heights; 0 is the lowest, a hole where there was nothing. */
static void put_spark(const struct dse_top_view *view, const struct dse_top_history *history, struct dse_buffer *out)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {"_", ".", ",", "-", "=", "+", "*", "#"};
    int first = history->n > SPARK_COLUMNS ? history->n - SPARK_COLUMNS : 0;
    double most = 1e-9;
    for (int i = first; i < history->n; i++)
        if (history->values[i] > most) most = history->values[i];
    for (int i = first; i < history->n; i++) {
        int height = (int)(history->values[i] / most * 7 + 0.5);
        if (history->values[i] < 0)
            dse_buffer_putc(out, ' ');
        else
            dse_buffer_puts(out, (view->utf8 ? blocks : ascii)[height > 7 ? 7 : height]);
    }
}

static void put_bar(const struct dse_top_view *view, struct dse_buffer *out, double share)
{
    int filled = (int)(share * BAR_COLUMNS + 0.5);
    dse_buffer_putc(out, '[');
    for (int i = 0; i < BAR_COLUMNS; i++)
        dse_buffer_puts(out, i < filled ? (view->utf8 ? "█" : "#") : (view->utf8 ? "░" : "-"));
    dse_buffer_putc(out, ']');
}

static void put_header(const struct dse_top_view *view, struct dse_buffer *out)
{
    const json_t *now = view->now;
    char up[32];
    if (view->is_stale)
        put_format(view, out, "deepseek-edge %s  %s  does not answer  node %s", text(now, "version"), view->url,
                   text(now, "edge_node_id"));
    else
        put_format(view, out, "deepseek-edge %s  %s  %s  node %s  up %s", text(now, "version"), view->url,
                   text(now, "status"), text(now, "edge_node_id"), duration(number(now, "uptime_seconds"), up));
    if (!json_is_object(find(now, "model"))) {
        put_format(view, out, "model   (none is loaded yet)");
        return;
    }
    put_format(view, out, "model   %s  %s %s  %.1f M parameters  context %.0f", text(now, "model.name"),
               text(now, "model.arch"), text(now, "model.quantization"), number(now, "model.n_params") / 1e6,
               number(now, "model.context_length"));
    put_format(view, out, "device  %s: %s (%s)  %.0f threads", text(now, "model.device"), text(now, "model.cpu"),
               text(now, "model.cpu_features"), number(now, "model.threads"));
}

static void put_speed(const struct dse_top_view *view, struct dse_buffer *out)
{
    struct dse_buffer line;
    dse_buffer_init(&line, DSE_MEM_MISC, 65536);
    dse_buffer_printf(&line, "tok/s   %8.1f  ", view->speed.values[view->speed.n - 1]);
    put_spark(view, &view->speed, &line);
    dse_buffer_printf(&line, "  prompt %.1f", number(view->now, "tokens.prompt_per_second"));
    put_line(view, out, dse_buffer_text(&line));
    dse_buffer_clear(&line);
    double ttft = first_token_seconds(view);
    double itl = mean_between(view, "inter_token_latency_seconds.sum", "inter_token_latency_seconds.count");
    dse_buffer_puts(&line, "latency ");
    if (ttft >= 0)
        dse_buffer_printf(&line, "first token %.3f s", ttft);
    else
        dse_buffer_puts(&line, "first token -");
    dse_buffer_putc(&line, ' ');
    put_spark(view, &view->first_token, &line);
    if (itl >= 0)
        dse_buffer_printf(&line, "  between tokens %.1f ms", itl * 1e3);
    else
        dse_buffer_puts(&line, "  between tokens -");
    dse_buffer_puts(&line, view->before != NULL ? "  (mean since the last look)" : "  (mean since the start)");
    put_line(view, out, dse_buffer_text(&line));
    dse_buffer_deinit(&line);
}

static void put_memory(const struct dse_top_view *view, struct dse_buffer *out)
{
    const json_t *now = view->now;
    double used = number(now, "kv.blocks_used"), all = number(now, "kv.blocks");
    char weights[32], kv[32], scratch[32];
    struct dse_buffer line;
    dse_buffer_init(&line, DSE_MEM_MISC, 65536);
    dse_buffer_puts(&line, "kv      ");
    put_bar(view, &line, all > 0 ? used / all : 0);
    dse_buffer_printf(&line, " %.0f %%  %.0f of %.0f blocks of %.0f tokens", all > 0 ? 100 * used / all : 0, used, all,
                      number(now, "kv.block_tokens"));
    put_line(view, out, dse_buffer_text(&line));
    dse_buffer_deinit(&line);
    put_format(view, out, "memory  weights %s  kv %s  scratch %s",
               dse_format_bytes((unsigned long long)number(now, "model.weight_bytes"), weights),
               dse_format_bytes((unsigned long long)number(now, "model.kv_bytes"), kv),
               dse_format_bytes((unsigned long long)number(now, "model.scratch_bytes"), scratch));
    put_format(
        view, out,
        "queue   running %.0f of %.0f  waiting %.0f   finished %.0f  cancelled %.0f  failed %.0f  rejected %.0f  "
        "preempted %.0f",
        number(now, "requests.running"), number(now, "model.max_concurrent"), number(now, "requests.waiting"),
        number(now, "requests.finished"), number(now, "requests.cancelled"), number(now, "requests.failed"),
        number(now, "requests.rejected"), number(now, "requests.preempted"));
}

/* Shares of the engine thread's time by cause. */
static void put_causes(const struct dse_top_view *view, struct dse_buffer *out)
{
    const json_t *now = find(view->now, "step_seconds"), *before = find(view->before, "step_seconds");
    struct dse_buffer line;
    double total = 0;
    const char *name;
    json_t *value;
    dse_buffer_init(&line, DSE_MEM_MISC, 65536);
    dse_buffer_puts(&line, "time   ");
    json_object_foreach((json_t *)now, name, value)
        total += json_number_value(value) - json_number_value(json_object_get(before, name));
    if (total <= 0) dse_buffer_puts(&line, " -");
    json_object_foreach((json_t *)now, name, value)
    {
        double part = json_number_value(value) - json_number_value(json_object_get(before, name));
        if (total > 0 && part / total >= 0.005) dse_buffer_printf(&line, " %s %.0f %% ", name, 100 * part / total);
    }
    put_line(view, out, dse_buffer_text(&line));
    dse_buffer_deinit(&line);
}

static void put_heat(const struct dse_top_view *view, struct dse_buffer *out)
{
    struct dse_buffer line;
    const char *name;
    json_t *value;
    double low = 0, high = 0;
    dse_buffer_init(&line, DSE_MEM_MISC, 65536);
    dse_buffer_puts(&line, "heat   ");
    json_object_foreach((json_t *)find(view->now, "sensors.temperature_celsius"), name, value)
        dse_buffer_printf(&line, " %s %.0f C ", name, json_number_value(value));
    json_object_foreach((json_t *)find(view->now, "sensors.cpu_frequency_hertz"), name, value)
    {
        double hertz = json_number_value(value);
        if (low == 0 || hertz < low) low = hertz;
        if (hertz > high) high = hertz;
    }
    if (high > 0) dse_buffer_printf(&line, " clock %.2f to %.2f GHz ", low / 1e9, high / 1e9);
    json_object_foreach((json_t *)find(view->now, "sensors.power_watts"), name, value)
        dse_buffer_printf(&line, " %s %.1f W ", name, json_number_value(value));
    json_object_foreach((json_t *)find(view->now, "sensors.throttled"), name, value)
        dse_buffer_printf(&line, " %s %s ", name, json_number_value(value) > 0 ? "THROTTLED" : "ok");
    if (line.length == 7) dse_buffer_puts(&line, " this machine tells no temperature, clock or power");
    put_line(view, out, dse_buffer_text(&line));
    dse_buffer_deinit(&line);
}

/* ---- requests ------------------------------------------------------------------------------------------------- */

static double context_of(const json_t *slot)
{
    return number(slot, "n_processed") + number(slot, "n_generated");
}

static int by_age(const void *a, const void *b)
{
    double x = number(*(json_t *const *)a, "age_seconds"), y = number(*(json_t *const *)b, "age_seconds");
    return x < y ? 1 : x > y ? -1 : 0;
}

static int by_speed(const void *a, const void *b)
{
    double x = number(*(json_t *const *)a, "tokens_per_second"), y = number(*(json_t *const *)b, "tokens_per_second");
    return x < y ? 1 : x > y ? -1 : 0;
}

static int by_context(const void *a, const void *b)
{
    double x = context_of(*(json_t *const *)a), y = context_of(*(json_t *const *)b);
    return x < y ? 1 : x > y ? -1 : 0;
}

static void put_requests(const struct dse_top_view *view, struct dse_buffer *out)
{
    static int (*const orders[])(const void *, const void *) = {by_age, by_speed, by_context};
    const json_t *slots = find(view->now, "slots"), *rows[MAX_ROWS];
    size_t count = json_array_size(slots);
    if (count > MAX_ROWS) count = MAX_ROWS;
    for (size_t i = 0; i < count; i++)
        rows[i] = json_array_get(slots, i);
    qsort(rows, count, sizeof *rows, orders[view->sort]);
    put_format(view, out, "%8s  %-12s %9s %8s %10s %16s", "request", "state", "age", "tok/s", "generated", "context");
    for (size_t i = 0; i < count; i++) {
        char state[32], age[32], context[40];
        double prompt = number(rows[i], "n_prompt");
        snprintf(state, sizeof state, "%s", text(rows[i], "state"));
        if (strcmp(state, "prefill") == 0 && prompt > 0)
            snprintf(state, sizeof state, "prefill %.0f %%", 100 * number(rows[i], "n_processed") / prompt);
        snprintf(context, sizeof context, "%.0f/%.0f", context_of(rows[i]), number(rows[i], "n_ctx"));
        put_format(view, out, "%8.0f  %-12s %9s %8.1f %10.0f %16s", number(rows[i], "id"), state,
                   duration(number(rows[i], "age_seconds"), age), number(rows[i], "tokens_per_second"),
                   number(rows[i], "n_generated"), context);
    }
    if (count == 0) put_line(view, out, "          (none)");
}

void dse_top_draw(const struct dse_top_view *view, struct dse_buffer *out)
{
    put_header(view, out);
    put_speed(view, out);
    put_memory(view, out);
    put_causes(view, out);
    put_heat(view, out);
    put_requests(view, out);
}
