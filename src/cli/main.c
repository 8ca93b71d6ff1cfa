/* Entry point: finds the verb, parses its flags, runs it, prints its error, exits with the status's code. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/lost_file.h"
#include "cli/options.h"
#include "cli/streams.h"
#include "cli/verbs.h"

static int report(const struct dse_error *err)
{
    if (dse_log_is_json()) {
        dse_log(DSE_LOG_ERROR, "main", "%s", err->message);
        return dse_status_exit_code(err->status);
    }
    fputs("deepseek-edge: ", stderr);
    dse_print_safely(stderr, err->message);
    fputc('\n', stderr);
    return dse_status_exit_code(err->status);
}

static enum dse_status run_help(const struct dse_options *options, struct dse_error *err)
{
    if (options->n_positional == 0) {
        dse_help_short(stdout);
        return DSE_OK;
    }
    const char *nearest;
    enum dse_verb verb = dse_verb_find(options->positional[0], &nearest);
    if (verb == DSE_VERB_COUNT)
        return dse_fail(err, DSE_ERR_INVALID, "there is no verb \"%s\"; try: deepseek-edge help",
                        options->positional[0]);
    dse_help_verb(stdout, verb);
    return DSE_OK;
}

static enum dse_status (*const verb_functions[DSE_VERB_COUNT])(const struct dse_options *, struct dse_error *) = {
    [DSE_VERB_RUN] = dse_verb_run,
    [DSE_VERB_SERVE] = dse_verb_serve,
    [DSE_VERB_SHOW] = dse_verb_show,
    [DSE_VERB_BENCH] = dse_verb_bench,
    [DSE_VERB_EVAL] = dse_verb_eval,
    [DSE_VERB_TOKENIZE] = dse_verb_tokenize,
    [DSE_VERB_CACHE] = dse_verb_cache,
    [DSE_VERB_TEMPLATE] = dse_verb_template,
    [DSE_VERB_DEVICES] = dse_verb_devices,
    [DSE_VERB_VERSION] = dse_verb_version,
    [DSE_VERB_TOP] = dse_verb_top,
    [DSE_VERB_ADAPTERS] = dse_verb_adapters,
    [DSE_VERB_HELP] = run_help,
};

/* A single write each, so that the lines of several threads do not mix. */
static void log_to_stderr(const char *line, size_t bytes)
{
    struct dse_buffer safe;
    dse_buffer_init(&safe, DSE_MEM_MISC, 8 * bytes + 64);
    dse_put_safely(&safe, line, bytes);
    ssize_t written = write(STDERR_FILENO, dse_buffer_text(&safe), safe.length);
    (void)written; /* nowhere to report it */
    dse_buffer_deinit(&safe);
}

static enum dse_status configure_log(const struct dse_options *options, struct dse_error *err)
{
    const char *level = dse_opt_text(options, DSE_OPT_LOG_LEVEL), *format = dse_opt_text(options, DSE_OPT_LOG_FORMAT);
    enum dse_log_level parsed = DSE_LOG_WARN;
    if (level != NULL && !dse_log_level_parse(level, &parsed))
        return dse_fail(err, DSE_ERR_INVALID, "--log-level: unknown level %s", level);
    dse_log_to(log_to_stderr);
    dse_log_configure(parsed, format != NULL && strcmp(format, "json") == 0);
    return DSE_OK;
}

static int run_program(int argc, char **argv)
{
    struct dse_error err = {0};
    struct dse_options options;
    if (argc < 2) {
        dse_help_short(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0) name = "version";
    if (strncmp(name, "--help=", 7) == 0) {
        dse_help_search(stdout, name + 7);
        return 0;
    }
    if (strcmp(name, "help") == 0 && argc == 3) {
        if (strcmp(argv[2], "--markdown") == 0) return dse_help_markdown(stdout), 0;
        if (strcmp(argv[2], "--man") == 0) return dse_help_man(stdout), 0;
        if (strcmp(argv[2], "--metrics") == 0) return dse_help_metrics(stdout), 0;
    }
    const char *nearest;
    enum dse_verb verb = dse_verb_find(name, &nearest);
    if (verb == DSE_VERB_COUNT) {
        if (nearest != NULL)
            dse_fail(&err, DSE_ERR_INVALID, "unknown verb \"%s\"; did you mean \"%s\"?", name, nearest);
        else
            dse_fail(&err, DSE_ERR_INVALID, "unknown verb \"%s\"; try: deepseek-edge help", name);
        return report(&err);
    }
    if (dse_options_parse(verb, argc - 2, argv + 2, &options, &err) != DSE_OK) return report(&err);
    if (options.help) {
        dse_help_verb(stdout, verb);
        return 0;
    }
    if (configure_log(&options, &err) != DSE_OK) return report(&err);
    if (verb_functions[verb](&options, &err) != DSE_OK) return report(&err);
    return 0;
}

int main(int argc, char **argv)
{
    dse_streams_open_missing();
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    dse_lost_file_watch();
    const int exit_code = run_program(argc, argv);
    /* A verb that failed when output was lost already has told so. */
    return exit_code != 0 && ferror(stdout) ? exit_code : dse_streams_finish(exit_code);
}
