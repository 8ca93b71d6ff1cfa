/* Help texts, docs/options.md and the man page, all from the option table. */
#include <dse/version.h>
#include <string.h>
#include <strings.h>

#include "cli/option_rows.h"
#include "cli/options.h"

void dse_help_short(FILE *out)
{
    fputs("deepseek-edge " DSE_VERSION
          ": language models on edge machines\n\nusage: deepseek-edge VERB [arguments]\n\n",
          out);
    for (int v = 0; v < DSE_VERB_COUNT; v++)
        fprintf(out, "  %-10s %s\n", dse_verbs[v].name, dse_verbs[v].summary);
    fputs("\ntry: deepseek-edge run MODEL.gguf \"Say hi\"\n"
          "     deepseek-edge help run        flags of a verb\n"
          "     deepseek-edge --help=seed     flags that mention a word\n",
          out);
}

static void flag_names(int i, char *out, size_t bytes)
{
    const struct dse_option_row *row = &dse_option_rows[i];
    int n = snprintf(out, bytes, "--%s", row->long_name);
    for (const char *alias = row->aliases; *alias != '\0' && n < (int)bytes;) {
        int length = (int)strcspn(alias, ",");
        n += snprintf(out + n, bytes - (size_t)n, ", %.*s", length, alias);
        alias += length;
        alias += *alias == ',';
    }
    if (row->value_name != NULL && n < (int)bytes) snprintf(out + n, bytes - (size_t)n, " %s", row->value_name);
}

/* Prints text folded at `width`, each line after the first indented. */
static void fold(FILE *out, const char *text, int indent, int width)
{
    int column = indent;
    while (*text != '\0') {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > width) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, text);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_flag(FILE *out, int i)
{
    const struct dse_option_row *row = &dse_option_rows[i];
    char names[160], text[768];
    flag_names(i, names, sizeof names);
    int n = snprintf(text, sizeof text, "%s", row->help);
    if (row->choices != NULL && n < (int)sizeof text)
        n += snprintf(text + n, sizeof text - (size_t)n, " [%s]", row->choices);
    if (row->fallback != NULL && n < (int)sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, " (default %s)", row->fallback);
    fprintf(out, "  %s\n      ", names);
    fold(out, text, 6, 100);
}

void dse_help_verb(FILE *out, enum dse_verb verb)
{
    const struct dse_verb_info *info = &dse_verbs[verb];
    fprintf(out, "usage: deepseek-edge %s\n\n%s.\n", info->usage, info->summary);
    if (info->details[0] != '\0') {
        fputc('\n', out);
        fold(out, info->details, 0, 100);
    }
    bool any = false;
    for (int i = 0; i < DSE_OPTION_COUNT; i++) {
        if (!(dse_option_rows[i].verbs >> verb & 1)) continue;
        if (!any) fputs("\nflags:\n", out);
        any = true;
        print_flag(out, i);
    }
    if (any)
        fputs("\nEvery flag can also be set by an environment variable: DEEPSEEK_EDGE_ and its name in capitals,\n"
              "for example DEEPSEEK_EDGE_MAX_MODEL_LEN=8K.\n",
              out);
}

void dse_help_search(FILE *out, const char *word)
{
    bool any = false;
    for (int i = 0; i < DSE_OPTION_COUNT; i++) {
        const struct dse_option_row *row = &dse_option_rows[i];
        if (strcasestr(row->long_name, word) == NULL && strcasestr(row->help, word) == NULL &&
            strcasestr(row->aliases, word) == NULL)
            continue;
        any = true;
        print_flag(out, i);
        fputs("      of:", out);
        for (int v = 0; v < DSE_VERB_COUNT; v++) {
            if (row->verbs >> v & 1) fprintf(out, " %s", dse_verbs[v].name);
        }
        fputc('\n', out);
    }
    if (!any) fprintf(out, "no flag mentions \"%s\"\n", word);
}

/* A table cell: | would end it. */
static void cell(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') fputc('\\', out);
        fputc(*text, out);
    }
}

void dse_help_markdown(FILE *out)
{
    fputs("# Flags\n\nMade by `deepseek-edge help --markdown` from the option table; a test compares the two.\n", out);
    for (int v = 0; v < DSE_VERB_COUNT; v++) {
        fprintf(out, "\n## %s\n\n`deepseek-edge %s`: %s. %s\n", dse_verbs[v].name, dse_verbs[v].usage,
                dse_verbs[v].summary, dse_verbs[v].details);
        bool any = false;
        for (int i = 0; i < DSE_OPTION_COUNT; i++) {
            const struct dse_option_row *row = &dse_option_rows[i];
            char names[160], env[96];
            if (!(row->verbs >> v & 1)) continue;
            if (!any) fputs("\n| flag | default | environment | meaning |\n|---|---|---|---|\n", out);
            any = true;
            flag_names(i, names, sizeof names);
            dse_option_env_name(i, env, sizeof env);
            fputs("| `", out);
            cell(out, names);
            fprintf(out, "` | %s | `%s` | ", row->fallback != NULL ? row->fallback : "", env);
            cell(out, row->help);
            if (row->choices != NULL) fprintf(out, " (%s)", row->choices);
            fputs(" |\n", out);
        }
    }
}

/* Text for roff: leading dots and backslashes, and hyphens that must stay hyphens. */
static void roff(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
    }
}

void dse_help_man(FILE *out)
{
    fputs(".TH DEEPSEEK\\-EDGE 1 \"\" \"deepseek\\-edge " DSE_VERSION "\" \"User Commands\"\n.SH NAME\n"
          "deepseek\\-edge \\- run language models on edge machines\n.SH SYNOPSIS\n.B deepseek\\-edge\n"
          ".I VERB\n[arguments]\n.SH VERBS\n",
          out);
    for (int v = 0; v < DSE_VERB_COUNT; v++) {
        fputs(".SS ", out);
        roff(out, dse_verbs[v].usage);
        fputs("\n", out);
        roff(out, dse_verbs[v].summary);
        fputs(".\n", out);
        roff(out, dse_verbs[v].details);
        fputs("\n", out);
        for (int i = 0; i < DSE_OPTION_COUNT; i++) {
            const struct dse_option_row *row = &dse_option_rows[i];
            char names[160];
            if (!(row->verbs >> v & 1)) continue;
            flag_names(i, names, sizeof names);
            fputs(".TP\n.B ", out);
            roff(out, names);
            fputs("\n", out);
            roff(out, row->help);
            if (row->choices != NULL) {
                fputs(" [", out);
                roff(out, row->choices);
                fputs("]", out);
            }
            if (row->fallback != NULL) {
                fputs(" (default ", out);
                roff(out, row->fallback);
                fputs(")", out);
            }
            fputs(".\n", out);
        }
    }
    fputs(".SH ENVIRONMENT\nEvery flag can be set by DEEPSEEK_EDGE_ and its name in capitals, for example\n"
          "DEEPSEEK_EDGE_MAX_MODEL_LEN. HF_HOME and HF_HUB_CACHE tell where the Hugging Face cache is, XDG_CACHE_HOME\n"
          "where ours is. NO_COLOR switches colour off. DSE_CPU_MASK limits the CPU features used (tests).\n"
          ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n1\nfailure\n.TP\n2\nwrong use\n.TP\n3\nmodel not found\n.TP\n4\n"
          "model unsupported, corrupt, or cut short while in use\n.TP\n5\nwill not fit in memory\n.TP\n6\ndevice "
          "unavailable\n.TP\n7\n"
          "port busy or server unreachable\n.TP\n130, 143\nended by SIGINT, SIGTERM; serve ends with 0 when it has\n"
          "drained after SIGTERM\n",
          out);
}
