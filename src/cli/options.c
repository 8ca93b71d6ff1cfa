/* Parsing of command lines and environment against the option table. */
#include "cli/options.h"

#include <errno.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/option_rows.h"

#define X(id, long_name, aliases, kind, value, fallback, minimum, maximum, choices, verbs, help)                       \
    {long_name,         aliases,           DSE_OPTION_##kind, value, fallback,                                         \
     (double)(minimum), (double)(maximum), choices,           verbs, help},
const struct dse_option_row dse_option_rows[DSE_OPTION_COUNT] = {DSE_OPTIONS(X)};
#undef X

const struct dse_verb_info dse_verbs[DSE_VERB_COUNT] = {
    [DSE_VERB_RUN] =
        {"run", "run [MODEL] [PROMPT] [flags]", "answer one prompt, or chat",
         "With a prompt (argument, -p, -f or standard input) it prints the answer to standard output and ends. "
         "Without one, on a terminal, it starts a chat; /help lists the commands there. "
         "A pipe or a file gets exactly the answer, without a newline after it.",
         2},
    [DSE_VERB_SERVE] = {"serve", "serve [MODEL] [flags]", "serve the OpenAI API over HTTP",
                        "SIGTERM stops taking requests, finishes those that run (--drain-timeout) and ends. "
                        "While the model loads, SIGTERM and Ctrl-C end at once.",
                        1},
    [DSE_VERB_SHOW] = {"show", "show MODEL [flags]", "tell what a model is and what memory it needs", "", 1},
    [DSE_VERB_BENCH] = {"bench", "bench MODEL|kernel [flags]", "measure prefill and decode rates",
                        "Every combination of depth and batch is measured; the median of the repeats is printed. "
                        "`bench kernel` needs no model: it compares each matmul kernel with what its instructions and "
                        "the memory can do at most.",
                        1},
    [DSE_VERB_EVAL] = {"eval", "eval --logits --ids FILE --output OUT.safetensors MODEL", "write logits for token ids",
                       "The output holds one f32 tensor `logits` of shape [ids, vocabulary]. With --mtp it also holds "
                       "`mtp_logits` of shape [ids - 1, vocabulary]: row i tells the token at i + 2.",
                       1},
    [DSE_VERB_TOKENIZE] =
        {"tokenize", "tokenize MODEL [TEXT]", "text to token ids",
         "MODEL may also be given as --tokenizer. "
         "With --json each line of standard input is {\"text\":…} and each line of output {\"ids\":[…]}.",
         DSE_MAX_POSITIONAL},
    [DSE_VERB_TEMPLATE] =
        {"template", "template MODEL", "render chat messages with a model's template",
         "MODEL may also be given as --tokenizer. "
         "Each line of standard input is {\"messages\":…,\"tools\":…,\"add_generation_prompt\":…}; with "
         "--json each line of output is {\"text\":…}, without it the text itself.",
         1},
    [DSE_VERB_CACHE] =
        {"cache", "cache wipe [DIR]", "remove what a prefix cache keeps on disk",
         "DIR is the folder of --prefix-cache-disk; its blocks of all models go, other files stay. While a "
         "server uses it, it is refused.",
         2},
    [DSE_VERB_DEVICES] = {"devices", "devices [flags]", "list what could run a model, and why not", "", 0},
    [DSE_VERB_VERSION] = {"version", "version [flags]", "version, compiler, CPU features", "", 0},
    [DSE_VERB_TOP] = {"top", "top [flags]", "watch a running server",
                      "On a terminal the picture is drawn anew at each interval: q ends it, p pauses, s sorts the "
                      "requests by age, speed or context. Elsewhere each look is printed as plain text, with --json as "
                      "one line of JSON; --once looks once.",
                      0},
    [DSE_VERB_ADAPTERS] =
        {"adapters", "adapters [list | load NAME PATH | unload NAME] [flags]",
         "list, load and unload the adapters of a running server",
         "Loading needs a server that was started with --lora-dir; PATH is inside that folder, on the "
         "server's machine. Requests in flight keep the adapters they began with.",
         3},
    [DSE_VERB_HELP] = {"help", "help [VERB]", "this help, or that of a verb", "", 1},
};

/* Levenshtein distance, for names shorter than 64 characters. */
static int distance(const char *a, const char *b)
{
    int row[64];
    int n = (int)strlen(b);
    if (n >= 64 || strlen(a) >= 64) return 64;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

enum dse_verb dse_verb_find(const char *name, const char **nearest)
{
    int best = 3;
    *nearest = NULL;
    for (int v = 0; v < DSE_VERB_COUNT; v++) {
        int d = distance(name, dse_verbs[v].name);
        if (d == 0) return (enum dse_verb)v;
        if (d < best) {
            best = d;
            *nearest = dse_verbs[v].name;
        }
    }
    return DSE_VERB_COUNT;
}

/* True if word (of `bytes` characters) is an element of a list separated by blanks or commas. */
static bool in_list(const char *list, const char *word, size_t bytes)
{
    while (list != NULL && *list != '\0') {
        size_t n = strcspn(list, ", ");
        if (n == bytes && strncmp(list, word, n) == 0) return true;
        list += n;
        list += strspn(list, ", ");
    }
    return false;
}

/* Finds the option that an argument names; *value is the text after '=' or NULL, *negated is set for --no-name. */
static int find_option(enum dse_verb verb, const char *argument, const char **value, bool *negated)
{
    const char *equal = strchr(argument, '=');
    size_t bytes = equal != NULL ? (size_t)(equal - argument) : strlen(argument);
    *value = equal != NULL ? equal + 1 : NULL;
    *negated = false;
    for (int i = 0; i < DSE_OPTION_COUNT; i++) {
        const struct dse_option_row *row = &dse_option_rows[i];
        if (!(row->verbs >> verb & 1)) continue;
        if (in_list(row->aliases, argument, bytes)) return i;
        if (bytes < 3 || argument[0] != '-' || argument[1] != '-') continue;
        size_t n = strlen(row->long_name);
        if (bytes - 2 == n && strncmp(argument + 2, row->long_name, n) == 0) return i;
        if (row->kind == DSE_OPTION_FLAG && bytes == n + 5 && strncmp(argument, "--no-", 5) == 0 &&
            strncmp(argument + 5, row->long_name, n) == 0) {
            *negated = true;
            return i;
        }
    }
    return -1;
}

static enum dse_status unknown_flag(enum dse_verb verb, const char *argument, struct dse_error *err)
{
    const char *nearest = NULL;
    int best = 4;
    char name[64];
    size_t n = strcspn(argument, "=");
    if (n >= sizeof name) n = sizeof name - 1;
    memcpy(name, argument, n);
    name[n] = '\0';
    const char *bare = name + strspn(name, "-");
    bool elsewhere = false;
    for (int i = 0; i < DSE_OPTION_COUNT; i++) {
        bool mine = dse_option_rows[i].verbs >> verb & 1;
        if (!mine) {
            elsewhere = elsewhere || strcmp(bare, dse_option_rows[i].long_name) == 0;
            continue;
        }
        int d = distance(bare, dse_option_rows[i].long_name);
        if (d < best) {
            best = d;
            nearest = dse_option_rows[i].long_name;
        }
    }
    if (elsewhere)
        return dse_fail(err, DSE_ERR_INVALID, "%s is not a flag of `%s`; try: deepseek-edge help %s", name,
                        dse_verbs[verb].name, dse_verbs[verb].name);
    if (nearest != NULL) return dse_fail(err, DSE_ERR_INVALID, "unknown flag %s; did you mean --%s?", name, nearest);
    return dse_fail(err, DSE_ERR_INVALID, "unknown flag %s; try: deepseek-edge help %s", name, dse_verbs[verb].name);
}

/* 4096, 32K (1024), 100k (1000), 1.5G. */
static bool parse_size(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    double unit = 1;
    if (end == text || errno != 0 || !isfinite(number)) return false;
    switch (*end) {
    case 'K': unit = 1024; break;
    case 'M': unit = 1024.0 * 1024; break;
    case 'G': unit = 1024.0 * 1024 * 1024; break;
    case 'k': unit = 1e3; break;
    case 'm': unit = 1e6; break;
    case 'g': unit = 1e9; break;
    default: break;
    }
    if (unit != 1) {
        end++;
        if (strcmp(end, "iB") == 0 || strcmp(end, "B") == 0) end = strchr(end, '\0');
    }
    number *= unit;
    if (*end != '\0' || fabs(number) > 9e18 || number != floor(number)) return false;
    *out = (int64_t)number;
    return true;
}

static bool parse_int(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    *out = number;
    return end != text && *end == '\0' && errno == 0;
}

static enum dse_status bad_value(const struct dse_option_row *row, const char *text, struct dse_error *err)
{
    switch (row->kind) {
    case DSE_OPTION_CHOICE:
        return dse_fail(err, DSE_ERR_INVALID, "--%s: \"%s\" is not one of: %s", row->long_name, text, row->choices);
    case DSE_OPTION_REAL:
        return dse_fail(err, DSE_ERR_INVALID, "--%s: \"%s\" is not a number from %g to %g", row->long_name, text,
                        row->minimum, row->maximum);
    case DSE_OPTION_SIZE:
        return dse_fail(err, DSE_ERR_INVALID, "--%s: \"%s\" is not a size such as 4096, 32K or 2G%s", row->long_name,
                        text, row->minimum > 0 ? " (or too small)" : " from 0 up");
    case DSE_OPTION_INTS:
        return dse_fail(err, DSE_ERR_INVALID, "--%s: \"%s\" is not a list such as 1,4,8 of numbers from %.0f to %.0f",
                        row->long_name, text, row->minimum, row->maximum);
    default:
        return dse_fail(err, DSE_ERR_INVALID, "--%s: \"%s\" is not a whole number from %.0f to %.0f", row->long_name,
                        text, row->minimum, row->maximum);
    }
}

static bool parse_ints(const struct dse_option_row *row, const char *text, struct dse_option_value *value)
{
    value->count = 0;
    while (*text != '\0') {
        char *end;
        errno = 0;
        long long number = strtoll(text, &end, 10);
        if (end == text || errno != 0 || (*end != ',' && *end != '\0')) return false;
        if ((double)number < row->minimum || (double)number > row->maximum || value->count == DSE_MAX_INTS)
            return false;
        value->ints[value->count++] = number;
        if (*end == ',' && end[1] == '\0') return false;
        text = *end == ',' ? end + 1 : end;
    }
    return value->count > 0;
}

static enum dse_status set_value(int index, const char *text, struct dse_option_value *value, struct dse_error *err)
{
    const struct dse_option_row *row = &dse_option_rows[index];
    bool ok = true;
    value->text = text;
    switch (row->kind) {
    case DSE_OPTION_FLAG:
        value->integer = in_list("1 on true yes", text, strlen(text));
        ok = value->integer || in_list("0 off false no", text, strlen(text));
        if (!ok) return dse_fail(err, DSE_ERR_INVALID, "--%s: \"%s\" is neither on nor off", row->long_name, text);
        break;
    case DSE_OPTION_STRING: break;
    case DSE_OPTION_INT:
    case DSE_OPTION_SIZE:
        ok = row->kind == DSE_OPTION_INT ? parse_int(text, &value->integer) : parse_size(text, &value->integer);
        ok = ok && (double)value->integer >= row->minimum && (double)value->integer <= row->maximum;
        break;
    case DSE_OPTION_REAL: {
        char *end;
        value->real = strtod(text, &end);
        ok = end != text && *end == '\0' && value->real >= row->minimum && value->real <= row->maximum;
        break;
    }
    case DSE_OPTION_CHOICE: ok = in_list(row->choices, text, strlen(text)) && *text != '\0'; break;
    case DSE_OPTION_INTS: ok = parse_ints(row, text, value); break;
    case DSE_OPTION_LIST:
        if (value->count == DSE_MAX_LIST)
            return dse_fail(err, DSE_ERR_INVALID, "--%s may be given at most %d times", row->long_name, DSE_MAX_LIST);
        value->list[value->count++] = text;
        break;
    }
    return ok ? DSE_OK : bad_value(row, text, err);
}

void dse_option_env_name(int index, char *out, size_t bytes)
{
    snprintf(out, bytes, "DEEPSEEK_EDGE_%s", dse_option_rows[index].long_name);
    for (char *p = out; *p != '\0'; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
}

static enum dse_status set_defaults(struct dse_options *options, struct dse_error *err)
{
    for (int i = 0; i < DSE_OPTION_COUNT; i++) {
        const struct dse_option_row *row = &dse_option_rows[i];
        char name[96];
        dse_option_env_name(i, name, sizeof name);
        const char *text = row->verbs >> options->verb & 1 ? getenv(name) : NULL;
        options->values[i].given = text != NULL;
        if (text == NULL) text = row->fallback;
        if (text == NULL) continue;
        enum dse_status status = set_value(i, text, &options->values[i], err);
        if (status != DSE_OK) {
            char message[sizeof err->message];
            snprintf(message, sizeof message, "%s", err != NULL ? err->message : "");
            return options->values[i].given ? dse_fail(err, status, "environment %s: %.300s", name, message) : status;
        }
    }
    return DSE_OK;
}

/* Arguments that nobody would read are a mistake of the one who wrote them. */
static enum dse_status check_unread(const struct dse_options *options, struct dse_error *err)
{
    const struct dse_verb_info *verb = &dse_verbs[options->verb];
    int most = verb->max_arguments;
    bool takes_model = dse_option_rows[DSE_OPT_MODEL].verbs >> options->verb & 1;
    if (takes_model && dse_opt_text(options, DSE_OPT_MODEL) != NULL) most--;
    if (options->n_positional <= most) return DSE_OK;
    return dse_fail(err, DSE_ERR_INVALID, "\"%.200s\" is one argument too many; usage: deepseek-edge %s",
                    options->positional[most], verb->usage);
}

enum dse_status dse_options_parse(enum dse_verb verb, int count, char **arguments, struct dse_options *options,
                                  struct dse_error *err)
{
    memset(options, 0, sizeof *options);
    options->verb = verb;
    enum dse_status status = set_defaults(options, err);
    bool only_positional = false;
    bool seen[DSE_OPTION_COUNT] = {false};
    for (int i = 0; status == DSE_OK && i < count; i++) {
        const char *argument = arguments[i];
        if (only_positional || argument[0] != '-' || argument[1] == '\0') {
            if (options->n_positional == DSE_MAX_POSITIONAL)
                return dse_fail(err, DSE_ERR_INVALID, "too many arguments; try: deepseek-edge help %s",
                                dse_verbs[verb].name);
            options->positional[options->n_positional++] = argument;
            continue;
        }
        if (strcmp(argument, "--") == 0) {
            only_positional = true;
            continue;
        }
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            options->help = true;
            continue;
        }
        const char *value;
        bool negated;
        int index = find_option(verb, argument, &value, &negated);
        if (index < 0) return unknown_flag(verb, argument, err);
        const struct dse_option_row *row = &dse_option_rows[index];
        struct dse_option_value *slot = &options->values[index];
        if (row->kind == DSE_OPTION_FLAG) {
            value = negated ? "off" : value != NULL ? value : "on";
        } else if (value == NULL) {
            if (i + 1 == count)
                return dse_fail(err, DSE_ERR_INVALID, "--%s needs a value: %s", row->long_name, row->value_name);
            value = arguments[++i];
        }
        if (!seen[index]) slot->count = 0; /* a list on the command line replaces that of the environment */
        seen[index] = true;
        slot->given = true;
        status = set_value(index, value, slot, err);
    }
    return status == DSE_OK && !options->help ? check_unread(options, err) : status;
}
